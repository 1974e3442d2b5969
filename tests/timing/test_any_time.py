"""Times before 2000 and from 2100 on: refused with the way to ask for them, and taken by a store
that was asked to, by every door.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from click.testing import CliRunner

import kvstore
from kvstore import CallerError, Message, MessageIllegal, Store
from kvstore.cli import kvmq as command
from tests.support.clock import VirtualClock
from tests.support.served import OwnServer, serving
from tests.support.stores import settings
from tests.support.waiting import until

IN_2070: Final = 3_155_760_000_000
IN_2101: Final = 4_133_980_800_000
IN_1970: Final = 86_400_000
LAST: Final = 9_999_999_999_999
ASK: Final = r"StoreConfig\(any_time=True\) allows other times"
TO_2101: Final = (IN_2101 - IN_2070) / 1000
"""Seconds."""

Calls = Callable[..., Any]
"""Makes a call of a store, by its name."""


def by_store(store: Store) -> Iterator[Calls]:
    yield lambda name, *args, **given: getattr(store, name)(*args, **given)


def by_namespace(store: Store) -> Iterator[Calls]:
    space = store.namespace("n")
    space.create_topic("t", queues=1)
    yield lambda name, *args, **given: getattr(space, name)(*args, **given)


def by_server(store: Store) -> Iterator[Calls]:
    with OwnServer(store) as served:
        yield lambda name, *args, **given: getattr(served, name)(*args, **given)


def by_asyncio(store: Store) -> Iterator[Calls]:
    with serving(store) as server:

        def call(name: str, *args: Any, **given: Any) -> Any:
            async def run() -> Any:
                async with kvstore.aio.connect(server.url) as served:
                    return await getattr(served, name)(*args, **given)

            return asyncio.run(run())

        yield call


DOORS: Final = [by_store, by_namespace, by_server, by_asyncio]


@pytest.fixture(params=[True, False], ids=["any_time", "dates"])
def asked(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(IN_2070)


@pytest.fixture(params=DOORS)
def call(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock, asked: bool
) -> Iterator[Calls]:
    """Calls of a store in the year 2070."""
    with kvstore.open(tmp_path / "s", settings(clock=clock, any_time=asked)) as store:
        store.create_topic("t", queues=1)
        yield from request.param(store)


def answers(asked: bool, make: Callable[[], Any]) -> Any:
    """The result of a call; None if it was refused, with the way to ask."""
    if asked:
        return make()
    with pytest.raises(MessageIllegal, match=ASK):
        make()
    return None


PUTS: Final[dict[str, Callable[[Calls, dict[str, Any]], Any]]] = {
    "put": lambda call, given: call("put", "t", b"x", **given),
    "put_batch": lambda call, given: call("put_batch", [Message("t", b"x", **given)]),
    "put_columns": lambda call, given: call(
        "put_columns", "t", pa.table({"body": [b"x"], **{n: [v] for n, v in given.items()}})
    ),
}


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
@pytest.mark.parametrize("time", [0, IN_1970, IN_2101, LAST])
def test_a_message_expires_at_any_time_if_that_was_asked_for(
    call: Calls, asked: bool, put: Callable[..., Any], time: int
) -> None:
    if answers(asked, lambda: put(call, {"expires_at": time})) is None:
        assert call("bounds", "t", 0).next_offset == 0
        return
    assert call("get", "t", 0, 0).expires_at == time
    found = call("pull", "t", 0, 0)
    assert [m.expires_at for m in found.messages] == ([time] if time > IN_2070 else [])
    assert found.expired == (0 if time > IN_2070 else 1)


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
@pytest.mark.parametrize("time", [0, IN_1970, IN_2101])
def test_a_message_is_delivered_at_any_time_if_that_was_asked_for(
    call: Calls, asked: bool, clock: VirtualClock, put: Callable[..., Any], time: int
) -> None:
    if answers(asked, lambda: put(call, {"deliver_at": time})) is None:
        assert call("bounds", "t", 0).next_offset == call("timers").count == 0
    elif time < IN_2070:
        assert call("bounds", "t", 0).next_offset == 1, "it is delivered now"
    else:
        assert [m.deliver_at for m in call("timers").messages] == [time]
        clock.advance(TO_2101 - 1)
        assert call("bounds", "t", 0).next_offset == 0
        clock.advance(2)
        until(lambda: call("bounds", "t", 0).next_offset == 1)


@pytest.mark.parametrize("given", [{"deliver_at": IN_2101}, {"delay": TO_2101}])
def test_a_delay_is_changed_to_any_time_if_that_was_asked_for(
    call: Calls, asked: bool, given: dict[str, Any]
) -> None:
    message_id = call("put", "t", b"x", delay=60).message_id
    before = call("timer", message_id).deliver_at
    due = answers(asked, lambda: call("change_delay", message_id, **given))
    assert call("timer", message_id).deliver_at == (due or before)
    assert due is None or IN_2101 <= due <= IN_2101 + 20


@pytest.mark.parametrize("name", ["put", "put_batch"])
def test_a_delay_ends_at_any_time_if_that_was_asked_for(
    call: Calls, asked: bool, name: str
) -> None:
    answers(asked, lambda: PUTS[name](call, {"delay": TO_2101}))
    assert call("timers").count == asked


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_prepared_message_expires_at_any_time_if_that_was_asked_for(
    call: Calls, asked: bool, is_batch: bool
) -> None:
    def prepare() -> Any:
        if not is_batch:
            return call("prepare", "t", b"x", group="pay", expires_at=IN_2101)
        return call("prepare_batch", [Message("t", b"x", expires_at=IN_2101)], group="pay")[0]

    prepared = answers(asked, prepare)
    if prepared is None:
        assert call("transactions").count == 0
    else:
        call("commit", prepared.message_id)
        assert call("get", "t", 0, 0).expires_at == IN_2101


@pytest.mark.parametrize("level", [None, 18])
def test_a_delay_of_a_level_ends_before_2100_too(
    tmp_path: Path, asked: bool, level: int | None
) -> None:
    clock = VirtualClock(4_102_444_800_000 - 3_600_000)
    given: dict[str, Any] = {"delay": 7_200} if level is None else {"delay_level": level}
    with kvstore.open(tmp_path / "s", settings(clock=clock, any_time=asked)) as store:
        store.create_topic("t")
        answers(asked, lambda: store.put("t", b"", **given))
        store.put("t", b"", delay_level=16)
        assert store.timers().count == 1 + asked


def test_a_schedule_goes_on_behind_2100_if_that_was_asked_for(tmp_path: Path, asked: bool) -> None:
    clock = VirtualClock(4_102_444_800_000 - 2 * 86_400_000)
    config = settings(clock=clock, any_time=asked)
    with kvstore.open(tmp_path / "s", config) as store:
        store.create_topic("t", queues=1)
        store.schedule("s", "t", b"", cron="0 0 * * *", missed="all", expires_after=10 * 86_400)
        clock.advance(4 * 86_400)
        came = 1 + 3 * asked
        until(lambda: store.bounds("t", 0).next_offset == came)
        until(lambda: (store.schedule_info("s").next_at is not None) == asked)
        last = store.get("t", 0, came - 1)
        expires_at = last.born_at + 10 * 86_400_000
        assert last.expires_at == (expires_at if asked else 4_102_444_799_999)


@pytest.mark.parametrize("field", ["deliver_at", "expires_at"])
@pytest.mark.parametrize("time", [-1, LAST + 1, 1 << 63, True, 1.5])
def test_a_time_that_no_record_has_room_for_is_refused_of_every_store(
    call: Calls, field: str, time: Any
) -> None:
    with pytest.raises(CallerError, match=field) as e:
        call("put", "t", b"x", **{field: time})
    assert "any_time" not in str(e.value), "that would not help"


def test_a_delay_whose_end_no_record_has_room_for_is_refused(tmp_path: Path) -> None:
    clock = VirtualClock(LAST - 5_000)
    with kvstore.open(tmp_path / "s", settings(clock=clock, any_time=True)) as store:
        store.create_topic("t")
        with pytest.raises(MessageIllegal, match="from 1970 to 2286"):
            store.put("t", b"", delay=6)
        store.put("t", b"", delay=3)
        assert store.timers().count == 1


def test_a_message_of_another_time_is_kept_by_a_store_that_takes_no_more_of_them(
    tmp_path: Path,
) -> None:
    clock = VirtualClock(IN_2070)
    with kvstore.open(tmp_path / "s", settings(clock=clock, any_time=True)) as store:
        store.create_topic("t", queues=1)
        store.put("t", b"far", deliver_at=IN_2101, expires_at=LAST)
    with kvstore.open(tmp_path / "s", settings(clock=clock)) as store:
        assert store.verify().problems == []
        clock.advance(TO_2101 + 1)
        until(lambda: store.bounds("t", 0).next_offset == 1)
        assert store.get("t", 0, 0).expires_at == LAST


def test_the_command_takes_any_time_with_the_setting_in_a_file(tmp_path: Path, asked: bool) -> None:
    path, file = tmp_path / "s", tmp_path / "kvmq.toml"
    file.write_text(f"any_time = {str(asked).lower()}")
    with kvstore.open(path, settings()) as store:
        store.create_topic("t", queues=1)
        message_id = store.put("t", b"", delay=3600).message_id
    (tmp_path / "lines").write_text(json.dumps({"body": "x", "deliver_at": IN_1970}) + "\n")
    for words in (
        ["put", str(path), "t", "--body", "x", "--deliver-at", "1970-02-01T00:00"],
        ["put", str(path), "t", "--body", "x", "--expires-at", str(IN_2101)],
        ["put", str(path), "t", "--jsonl", str(tmp_path / "lines")],
        ["timer", "change", str(path), message_id, "--deliver-at", str(IN_1970)],
    ):
        ran = CliRunner().invoke(command, [*words, "--config", str(file), "--json"])
        assert (ran.exit_code == 0) == asked, ran.output
        if not asked:
            error = json.loads(ran.stderr)
            assert error["error"] == "MessageIllegal"
            assert "any_time = true in the file of --config allows other times" in error["message"]
    with kvstore.open(path, settings()) as store:
        assert store.bounds("t", 0).next_offset == (4 if asked else 0)
