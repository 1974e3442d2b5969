"""A web request that is retried: after 0.1, 0.2 and 0.4 s, and then kept with its last error.

python -m examples.retried_request
"""

from __future__ import annotations

import sys
import tempfile
import urllib.request
from collections.abc import Callable

import kvstore

Send = Callable[[str, bytes], None]


def post(url: str, body: bytes) -> None:
    """Sends a request; an answer that is no success is an exception."""
    with urllib.request.urlopen(url, body, timeout=10) as answer:  # noqa: S310  # http is meant
        answer.read()


def deliver(store: kvstore.Store, send: Send) -> kvstore.Consumer:
    """Sends each request that is put to the topic `requests`; its key is the URL."""
    store.create_topic("requests", exist_ok=True)
    store.create_group("sender", max_attempts=4, backoff=[0.1, 0.2, 0.4], exist_ok=True)

    def attempt(popped: kvstore.Popped) -> None:
        send(popped.message.keys[0], popped.message.body)

    return store.consume("sender", "requests", attempt, concurrency=8)


def main() -> None:
    """Sends a request to a server that fails twice, and one to a server that is not there."""
    failures = {"http://shaky/": 2, "http://gone/": 99}

    def send(url: str, body: bytes) -> None:
        failures[url] -= 1
        if failures[url] >= 0:
            raise ConnectionError(f"no answer from {url}")
        sys.stdout.write(f"{url} took {body.decode()}\n")

    with tempfile.TemporaryDirectory() as folder, kvstore.open(folder) as store:
        with deliver(store, send) as consumer:
            for url in failures:
                store.put("requests", b"an order", keys=[url])
            while sum((consumer.stats().handled, consumer.stats().failed)) < 7:
                consumer.wait(0.05)
        letter = store.pull("%DLQ%sender", 0, 0).messages[0]
        sys.stdout.write(f"given up: {letter.properties['DLQ_NACK_REASON']}\n")


if __name__ == "__main__":
    main()
