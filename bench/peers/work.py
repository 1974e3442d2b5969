"""Does one work with one store, in this process: `python -m bench.peers.work PEER WORK FOLDER N`.

Prints figures as JSON, by name; none where the store has no such call. Whatever takes longer than
`SECONDS` ends there, and counts what was done.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.peers.peer import Item, Peer, items, on_disk, resident

BATCH: Final = 32
QUEUES: Final = 8
THREADS: Final = 16
SECONDS: Final = 3.0
_CHUNK: Final = 128
"""Batches made at once, before the clock starts."""
PEERS: Final = {
    "kvmq": "peer_kvmq:Kvmq",
    "nats": "peer_nats:JetStream",
    "redis": "peer_redis:Streams",
    "sqlite": "peer_sqlite:LeaseTable",
    "persist-queue": "peer_queues:PersistQueue",
    "litequeue": "peer_queues:LiteQueue",
}

Figures = dict[str, float]
Open = Callable[[bool], Peer]


def _batches(coming: Iterator[Item], size: int) -> Iterator[list[list[Item]]]:
    while batch := list(islice(coming, size * _CHUNK)):
        yield [batch[at : at + size] for at in range(0, len(batch), size)]


def load(peer: Peer, coming: Iterator[Item], size: int, places: list[Any] | None = None) -> float:
    """Put messages in batches of `size`; how many a second."""
    seconds, count = 0.0, 0
    for chunk in _batches(coming, size):
        begin = time.perf_counter()
        for batch in chunk:
            found = peer.put_batch(batch) if size > 1 else [peer.put(batch[0])]
            if places is not None:
                places += found
        seconds += time.perf_counter() - begin
        count += sum(map(len, chunk))
        if seconds > SECONDS:
            break
    begin = time.perf_counter()
    peer.settle()
    return count / (seconds + time.perf_counter() - begin)


def _put(size: int, body: int) -> Callable[[Open, int], Figures]:
    def work(opens: Open, count: int) -> Figures:
        peer = opens(False)
        peer.create(8, QUEUES)
        load(peer, items(count // 5, body, 8, QUEUES), size)
        rate = load(peer, items(count, body, 8, QUEUES, count // 5), size)
        peer.close()
        return {"rate": rate}

    return work


def _put_sync(opens: Open, count: int) -> Figures:
    peer = opens(True)
    peer.create(8, QUEUES)
    each = max(1, count // 20 // THREADS)

    def put(thread: int) -> int:
        own, done, end = peer.another(), 0, time.perf_counter() + SECONDS
        for item in list(items(each, 128, 8, QUEUES, thread * each)):
            own.put(item)
            done += 1
            if time.perf_counter() > end:
                break
        return done

    rate = _together(put)
    peer.close()
    return {"rate": rate}


def _together(work: Callable[[int], int]) -> float:
    counts: list[int] = []
    threads = [threading.Thread(target=lambda n=n: counts.append(work(n))) for n in range(THREADS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) < THREADS:
        raise RuntimeError("a thread ended by an error")
    return sum(counts) / (time.perf_counter() - begin)


def _timed(calls: Iterator[int]) -> float:
    """The rate of some calls, a second; the first fifth of the time does not count."""
    begin = time.perf_counter()
    done = [(begin, 0)]
    for count in calls:
        done.append((time.perf_counter(), done[-1][1] + count))
        if done[-1][0] > begin + SECONDS:
            break
    at, before = done[len(done) // 5]
    return (done[-1][1] - before) / max(done[-1][0] - at, 1e-9)


def _loaded(opens: Open, count: int, topics: int = 1) -> tuple[Peer, list[Any]]:
    peer, places = opens(False), list[Any]()
    peer.create(topics, QUEUES)
    load(peer, items(count, 128, topics, QUEUES), BATCH, places)
    return peer, places


def _pull(opens: Open, count: int) -> Figures:
    peer, _ = _loaded(opens, count)

    def calls() -> Iterator[int]:
        for queue in range(QUEUES if peer.queues_of_own else 1):
            cursor = None
            while True:
                found, cursor = peer.pull(0, queue, cursor)
                if not found:
                    break
                yield len(found)

    return {"rate": _timed(calls())}


def _get(opens: Open, count: int) -> Figures:
    peer, places = _loaded(opens, count)
    drawn = Random(2).choices(places, k=max(count // 5, 5))
    return {"rate": _timed(1 for place in drawn if peer.get(place))}


def _query(opens: Open, count: int) -> Figures:
    peer, places = _loaded(opens, count)
    drawn = (f"order-{Random(n).randrange(len(places))}" for n in range(max(count // 10, 5)))
    return {"rate": _timed(peer.query(0, key) for key in drawn)}


def _pop(size: int, share: int) -> Callable[[Open, int], Figures]:
    def work(opens: Open, count: int) -> Figures:
        peer, _ = _loaded(opens, count // share)

        def calls() -> Iterator[int]:
            while handles := peer.pop(size):
                peer.ack(handles)
                yield len(handles)

        return {"rate": _timed(calls())}

    return work


def _pop_threads(opens: Open, count: int) -> Figures:
    peer, places = _loaded(opens, count // 5)
    each = len(places) // THREADS

    def pop(_: int) -> int:
        own, done, end = peer.another(), 0, time.perf_counter() + SECONDS
        while done < each and time.perf_counter() < end and (handles := own.pop(1)):
            own.ack(handles)
            done += 1
        return done

    return {"rate": _together(pop)}


def _topics(topics: int) -> Callable[[Open, int], Figures]:
    def work(opens: Open, count: int) -> Figures:
        peer = opens(False)
        peer.create(topics, QUEUES)
        rate = load(peer, items(count, 128, topics, QUEUES), BATCH)
        memory = resident(peer.pids())
        peer.close()
        return {"rate": rate, "memory": memory / 1e6, "disk": on_disk(peer.folder) / count}

    return work


WORKS: Final[dict[str, Callable[[Open, int], Figures]]] = {
    "put_batch": _put(BATCH, 128),
    "put_batch_1k": _put(BATCH, 1024),
    "put": _put(1, 128),
    "put_sync": _put_sync,
    "pull": _pull,
    "get": _get,
    "query": _query,
    "pop_batch": _pop(BATCH, 1),
    "pop_one": _pop(1, 5),
    "pop_threads": _pop_threads,
    "topics_8": _topics(8),
    "topics_500": _topics(500),
    "topics_5000": _topics(5000),
}


def main(name: str, work: str, folder: str, count: str) -> None:
    """Does it."""
    module, _, kind = PEERS[name].partition(":")
    make = getattr(importlib.import_module(f"bench.peers.{module}"), kind)
    opened: list[Peer] = []

    def opens(sync: bool) -> Peer:
        opened.append(make(Path(folder), sync))
        return opened[-1]

    try:
        print(json.dumps(WORKS[work](opens, int(count))))
    except NotImplementedError:
        print("{}")
    finally:
        for peer in opened:
            peer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
