"""RocketMQ's Python client in a process of its own, which does what it is told, line by line.

The idea: the client has threads, a log in the home folder, and grpcio, which minds forks; none of
that belongs into the process of the tests. A line of JSON names a function below and its arguments;
the answer is a line with the result, or with the error. Bytes are Base64 text on the way.

    with RocketmqClient(endpoint, tmp_path) as client:
        client.do("producer", topics=["orders"])
        client.do("send", topic="orders", body="...")
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

_PATIENCE = 30.0


class RocketmqClient:
    """The process, as a test uses it."""

    def __init__(
        self, endpoint: str, folder: Path, namespace: str = "", access: str = "", secret: str = ""
    ) -> None:
        environment = dict(os.environ, HOME=str(folder), PYTHONWARNINGS="ignore")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, endpoint, namespace, access, secret],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def do(self, name: str, /, **given: Any) -> Any:
        """The result of one function; RuntimeError with the text of its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, given]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the client's process has ended"
        is_good, found = json.loads(line)
        if not is_good:
            raise RuntimeError(found)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def main() -> None:
    """Does what the lines of standard input say."""
    done = _Doing(*sys.argv[1:])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the client prints
    for line in sys.stdin:
        name, given = json.loads(line)
        try:
            answer = [True, getattr(done, name)(**given)]
        except Exception as e:
            answer = [False, f"{type(e).__name__}: {e}"]
        print(json.dumps(answer), file=out, flush=True)
    os._exit(0)


class _Doing:
    """The functions that a line may name."""

    def __init__(self, endpoint: str, namespace: str, access: str, secret: str) -> None:
        import rocketmq

        self._api = rocketmq
        self._endpoint = endpoint
        self._configuration = rocketmq.ClientConfiguration(
            endpoint, rocketmq.Credentials(access, secret), namespace
        )
        self._received: list[Any] = []
        self._pushed: queue.Queue[dict[str, Any]] = queue.Queue()
        self._asked: list[str] = []
        self._transactions: list[Any] = []

    # --- the client ---

    def producer(self, topics: list[str], answers: str | None = None) -> None:
        api, asked = self._api, self._asked

        class Checker(api.TransactionChecker):  # type: ignore[misc,name-defined]
            def check(self, message: Any) -> Any:
                asked.append(message.body.decode())
                return getattr(api.TransactionResolution, str(answers))

        self._producer = api.Producer(
            self._configuration, tuple(topics), checker=Checker() if answers else None
        )
        self._producer.startup()

    def send(self, topic: str, body: str, transaction: bool = False, **fields: Any) -> Any:
        message = self._api.Message()
        message.topic, message.body = topic, body.encode()
        for name, value in fields.pop("properties", {}).items():
            message.add_property(name, value)
        for name, value in fields.items():
            setattr(message, name, value)
        if not transaction:
            sent = self._producer.send(message)
        else:
            begun = self._producer.begin_transaction()
            sent = self._producer.send(message, begun)
            self._transactions.append(begun)
        return {"id": sent.message_id, "offset": sent.offset, "handle": sent.recall_handle}

    def end(self, how: str) -> None:
        getattr(self._transactions.pop(), how)()

    def asked(self, count: int) -> list[str]:
        # RocketMQ's broker asks by rounds, and the first ones may find no producer yet.
        _until(lambda: len(self._asked) >= count, 5 * _PATIENCE)
        return list(self._asked)

    def recall(self, topic: str, handle: str) -> str:
        found: str = self._producer.recall_message(topic, handle)
        return found

    def _filters(self, topics: dict[str, list[str]]) -> dict[str, Any]:
        api = self._api
        return {
            topic: api.FilterExpression(text, 2 if kind == "sql" else 1)
            for topic, (kind, text) in topics.items()
        }

    def simple(self, group: str, topics: dict[str, list[str]], wait: int = 5) -> None:
        self._simple = self._api.SimpleConsumer(
            self._configuration, group, self._filters(topics), await_duration=wait
        )
        self._simple.startup()

    def receive(self, count: int = 16, invisible: int = 10) -> list[dict[str, Any]]:
        found = self._simple.receive(count, invisible)
        first = len(self._received)
        self._received += found
        return [_shown(m, first + i) for i, m in enumerate(found)]

    def ack(self, at: int) -> None:
        self._simple.ack(self._received[at])

    def change(self, at: int, seconds: int) -> None:
        self._simple.change_invisible_duration(self._received[at], seconds)

    def push(
        self, group: str, topics: dict[str, list[str]], fails: int = 0, lasts: float = 0.0
    ) -> None:
        api, pushed = self._api, self._pushed
        failures: dict[str, int] = {}

        class Listener(api.MessageListener):  # type: ignore[misc,name-defined]
            def consume(self, message: Any) -> Any:
                pushed.put(_shown(message, -1))
                time.sleep(lasts)
                failed = failures[message.message_id] = failures.get(message.message_id, -1) + 1
                return api.ConsumeResult.SUCCESS if failed >= fails else api.ConsumeResult.FAILURE

        self._push = api.PushConsumer(self._configuration, group, Listener(), self._filters(topics))
        self._push.startup()

    def pushed(self, count: int, patience: float = _PATIENCE) -> list[dict[str, Any]]:
        return [self._pushed.get(timeout=patience) for _ in range(count)]

    def shutdown(self, name: str) -> None:
        getattr(self, f"_{name}").shutdown()

    # --- calls by hand ---

    def call(
        self,
        path: str,
        request: str,
        metadata: dict[str, str],
        timeout: float = _PATIENCE,
        roots: str | None = None,
    ) -> list[str]:
        import grpc

        tls = None if roots is None else grpc.ssl_channel_credentials(roots.encode())
        with (
            grpc.insecure_channel(self._endpoint)
            if tls is None
            else grpc.secure_channel(self._endpoint, tls)
        ) as channel:
            made = channel.stream_stream(path)
            answers = made(
                iter([base64.b64decode(request)]), metadata=list(metadata.items()), timeout=timeout
            )
            return [base64.b64encode(one).decode() for one in answers]


def _shown(message: Any, at: int) -> dict[str, Any]:
    return {
        "at": at,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys or ()),
        "properties": dict(message.properties or {}),
        "id": message.message_id,
        "group": message.message_group,
        "attempt": message.delivery_attempt,
    }


def _until(met: Any, patience: float = _PATIENCE) -> None:
    until = time.monotonic() + patience
    while not met():
        if time.monotonic() > until:
            raise TimeoutError("it never came")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
