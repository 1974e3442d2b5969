"""gRPC's own client, which RocketMQ's Python client is built on, calls the server as it is."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from kvstore.serve.http2.grpc_call import Bidirectional, Call, Gathered, Method, ServerStream, Unary
from kvstore.serve.http2.grpc_status import CallFailed, Code
from kvstore.serve.http2.h2_limits import H2Limits
from kvstore.serve.http2.h2_server import server_tls
from tests.support.certificates import make_certificate
from tests.support.grpc_serving import ECHO, Serving, serving
from tests.support.waiting import until

_PATIENCE: Final = 30.0


def same(data: bytes) -> bytes:
    return data


def one(channel: grpc.Channel, name: str) -> Any:
    return channel.unary_unary(f"/test.Echo/{name}", same, same)


def failure(call: Any, *args: object, **more: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call(*args, **more)
    error: Any = raised.value
    return error.code(), error.details()


@pytest.fixture(scope="module")
def echo() -> Iterator[Serving]:
    with serving(ECHO) as made:
        yield made


@pytest.fixture
def channel(echo: Serving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{echo.port}") as made:
        yield made


@pytest.mark.parametrize("name", ["One", "All"])
@pytest.mark.parametrize("size", [0, 1, 1000, 70_000, 3_000_000])
def test_a_request_of_any_size_is_answered(channel: grpc.Channel, name: str, size: int) -> None:
    assert one(channel, name)(b"x" * size, timeout=_PATIENCE) == b"x" * size


def test_many_calls_at_a_time_get_their_own_answers(channel: grpc.Channel) -> None:
    calls = [one(channel, "All" if n % 2 else "One").future(b"%d" % n) for n in range(300)]
    assert [call.result(_PATIENCE) for call in calls] == [b"%d" % n for n in range(300)]


def test_a_server_streams_more_than_all_windows_hold(channel: grpc.Channel) -> None:
    repeat = channel.unary_stream("/test.Echo/Repeat", same, same)
    found = list(repeat(b"60:" + b"y" * 200_000, timeout=_PATIENCE))
    assert [len(message) for message in found] == [200_000] * 60


def test_requests_and_answers_alternate(channel: grpc.Channel) -> None:
    talk = channel.stream_stream("/test.Echo/Talk", same, same)
    said = iter([b"a", b"b" * 2_000_000, b"", b"c"])
    assert list(talk(said, timeout=_PATIENCE)) == [b"a", b"b" * 2_000_000, b"", b"c"]


def test_a_compressed_request_is_read(channel: grpc.Channel) -> None:
    call = one(channel, "One")
    assert call(b"z" * 100_000, compression=grpc.Compression.Gzip) == b"z" * 100_000


def test_an_encoding_that_is_not_known_is_named(channel: grpc.Channel) -> None:
    call = one(channel, "One")
    code, text = failure(call, b"z" * 9000, compression=grpc.Compression.Deflate)
    assert (code, "gzip" in text) == (grpc.StatusCode.UNIMPLEMENTED, True)


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    code, text = failure(one(channel, "Nothing"), b"")
    assert (code, text) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "there is no method /test.Echo/Nothing",
    )


def test_a_message_above_the_limit_ends_its_call_alone(channel: grpc.Channel) -> None:
    code, _ = failure(one(channel, "One"), b"x" * (9 << 20))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert one(channel, "One")(b"next") == b"next"


def test_metadata_peer_and_deadline_reach_the_handler() -> None:
    seen: list[tuple[dict[str, str], str, float | None]] = []

    async def look(call: Call, request: bytes) -> bytes:
        seen.append((call.metadata, call.peer, call.seconds_left()))
        return b""

    with (
        serving({"/test.Echo/Look": Unary(look)}) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        call = one(channel, "Look")
        call(b"", metadata=[("x-mq-client-id", "me"), ("x-bin", b"\0\1")], timeout=20)
        call(b"")
    (metadata, peer, left), (_, _, none) = seen
    assert metadata["x-mq-client-id"] == "me"
    assert metadata["x-bin"] == "AAE"
    assert peer.startswith("127.0.0.1:")
    assert left is not None
    assert 0 < left < 21, "the client rounds it up"
    assert none is None


def test_an_error_reaches_the_client_with_any_text() -> None:
    async def refuse(call: Call, request: bytes) -> bytes:
        raise CallFailed(Code.NOT_FOUND, "no “topic”: 100 %\n\t€")

    async def break_down(call: Call, request: bytes) -> bytes:
        raise KeyError("a secret")

    async def mistake(call: Call, request: bytes) -> bytes:
        return "a text"  # type: ignore[return-value] # the mistake

    async def stop(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise CallFailed(Code.ABORTED, "enough")

    methods: dict[str, Method] = {
        "/test.Echo/Refuse": Unary(refuse),
        "/test.Echo/Break": Unary(break_down),
        "/test.Echo/Mistake": Unary(mistake),
        "/test.Echo/Stop": ServerStream(stop),
    }
    with (
        serving(methods) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        told = failure(one(channel, "Refuse"), b"")
        assert told == (grpc.StatusCode.NOT_FOUND, "no “topic”: 100 %\n\t€")
        for name in ("Mistake", "Break"):
            broken = failure(one(channel, name), b"")
            assert broken == (grpc.StatusCode.INTERNAL, "the handler failed")
        answers = channel.unary_stream("/test.Echo/Stop", same, same)(b"")
        assert next(answers) == b"first"
        assert failure(next, answers) == (grpc.StatusCode.ABORTED, "enough")


def test_a_long_text_of_an_error_is_cut() -> None:
    async def refuse(call: Call, request: bytes) -> bytes:
        raise CallFailed(Code.ABORTED, "€" * 100_000)

    with (
        serving({"/test.Echo/Refuse": Unary(refuse)}) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        assert failure(one(channel, "Refuse"), b"")[1] == "€" * 341


def test_a_gathered_handler_that_fails_ends_only_calls_that_it_did_not_answer() -> None:
    def halfway(calls: list[Call]) -> None:
        for call in calls:
            if call.request == b"bad":
                raise ValueError("bad")
            call.finish(call.request)

    with (
        serving({"/test.Echo/All": Gathered(halfway)}) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        assert one(channel, "All")(b"good") == b"good"
        assert failure(one(channel, "All"), b"bad")[0] == grpc.StatusCode.INTERNAL
        assert one(channel, "All")(b"good") == b"good"


class Waiting:
    """Handlers that wait, and note how they end."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.ended: list[str] = []

    async def unary(self, call: Call, request: bytes) -> bytes:
        await self._wait("unary")
        return b""

    async def stream(self, call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        await self._wait("stream")
        yield b""

    async def talk(self, call: Call, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        self.begun.release()
        try:
            async for _ in requests:
                yield b""
        finally:
            self.ended.append("talk")

    def gathered(self, calls: list[Call]) -> None:
        for call in calls:
            call.when_cancelled(lambda: self.ended.append("gathered"))
            self.begun.release()

    async def _wait(self, name: str) -> None:
        self.begun.release()
        try:
            await asyncio.sleep(1000)
        finally:
            self.ended.append(name)

    @property
    def methods(self) -> dict[str, Any]:
        return {
            "/test.Echo/unary": Unary(self.unary),
            "/test.Echo/stream": ServerStream(self.stream),
            "/test.Echo/talk": Bidirectional(self.talk),
            "/test.Echo/gathered": Gathered(self.gathered),
        }

    def call(self, channel: grpc.Channel, name: str, timeout: float | None = None) -> Any:
        if name in ("unary", "gathered"):
            return one(channel, name).future(b"", timeout=timeout)
        if name == "stream":
            return channel.unary_stream(f"/test.Echo/{name}", same, same)(b"", timeout=timeout)
        silent: Iterator[bytes] = iter(threading.Event().wait, True)  # type: ignore[arg-type] # it never ends
        return channel.stream_stream(f"/test.Echo/{name}", same, same)(silent, timeout=timeout)

    def begin(self, channel: grpc.Channel, name: str) -> Any:
        """Begins a call, and waits until its handler has."""
        call = self.call(channel, name)
        assert self.begun.acquire(timeout=_PATIENCE)
        return call


KINDS: Final = ("unary", "stream", "talk", "gathered")


@pytest.mark.parametrize("name", KINDS)
def test_a_call_that_the_client_takes_back_ends_its_handler(name: str) -> None:
    waiting = Waiting()
    with (
        serving(waiting.methods) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        waiting.begin(channel, name).cancel()
        until(lambda: waiting.ended == [name])


@pytest.mark.parametrize("name", ["unary", "stream", "gathered"])
def test_a_deadline_ends_the_handler_too(name: str) -> None:
    waiting = Waiting()
    with (
        serving(waiting.methods) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        # On a machine with other work a handler may not begin before a short deadline.
        for seconds in (0.2, 2, 20):
            call = waiting.call(channel, name, seconds)
            assert call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            if waiting.begun.acquire(blocking=False):
                break
        until(lambda: {*waiting.ended} == {name})


@pytest.mark.parametrize("name", ["unary", "gathered"])
def test_a_lost_connection_ends_its_calls(name: str) -> None:
    waiting = Waiting()
    with serving(waiting.methods) as made:
        with grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel:
            waiting.begin(channel, name)
        until(lambda: waiting.ended == [name])
        until(lambda: not made.server.connections)


def test_a_server_that_closes_fails_its_calls_as_unavailable() -> None:
    waiting = Waiting()
    with (
        serving(waiting.methods) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        call = waiting.begin(channel, "unary")
        made.run(made.server.close())
        assert call.code() == grpc.StatusCode.UNAVAILABLE
        assert waiting.ended == ["unary"]


def test_a_server_that_drains_answers_its_calls_and_takes_no_more() -> None:
    begun, go_on = threading.Event(), asyncio.Event()

    async def wait(call: Call, request: bytes) -> bytes:
        begun.set()
        await go_on.wait()
        return b"answered"

    with (
        serving({"/test.Echo/One": Unary(wait)}) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        call = one(channel, "One").future(b"")
        assert begun.wait(_PATIENCE)
        drained = asyncio.run_coroutine_threadsafe(made.server.drain(_PATIENCE), made.loop)
        more = one(channel, "One")
        until(lambda: failure(more, b"", timeout=0.5)[0] == grpc.StatusCode.UNAVAILABLE)
        made.loop.call_soon_threadsafe(go_on.set)
        assert call.result(_PATIENCE) == b"answered"
        drained.result(_PATIENCE)


def test_tls_and_plaintext_are_served_at_one_port(tmp_path: Path) -> None:
    certificates, key = make_certificate(tmp_path)
    trusted = grpc.ssl_channel_credentials(Path(certificates).read_bytes())
    with serving(ECHO, tls=server_tls(certificates, key)) as made:
        with grpc.secure_channel(f"localhost:{made.port}", trusted) as channel:
            assert one(channel, "One")(b"x" * 3_000_000) == b"x" * 3_000_000
            repeat = channel.unary_stream("/test.Echo/Repeat", same, same)
            assert len(list(repeat(b"60:" + b"y" * 200_000))) == 60
        with grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel:
            assert one(channel, "One")(b"plain") == b"plain"


def test_plaintext_is_refused_where_only_tls_is_served(tmp_path: Path) -> None:
    certificates, key = make_certificate(tmp_path)
    with (
        serving(ECHO, tls=server_tls(certificates, key), is_plain=False) as made,
        grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel,
    ):
        assert failure(one(channel, "One"), b"")[0] == grpc.StatusCode.UNAVAILABLE


def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(tmp_path / "s"))
    door.listen()
    with (
        serving(ECHO, door=door),
        grpc.insecure_channel(f"unix:{tmp_path / 's'}") as channel,
    ):
        assert one(channel, "One")(b"x") == b"x"


def test_one_connection_more_than_allowed_is_closed() -> None:
    with serving(ECHO, H2Limits(connections=2)) as made:
        doors = [socket.create_connection(("127.0.0.1", made.port)) for _ in range(3)]
        for door in doors:
            door.settimeout(_PATIENCE)
        assert doors[2].recv(1) == b""
        doors[2].close()
        doors[0].close()
        with grpc.insecure_channel(f"127.0.0.1:{made.port}") as channel:
            until(lambda: one(channel, "One")(b"x", wait_for_ready=True) == b"x")
        doors[1].close()
