"""Does one work with one store, in this process: `python -m bench.peers.work PEER WORK FOLDER N`.

Prints figures as JSON, by row and name; none where the store has no such call. The clock runs in
the calls alone, not while messages are made or loaded. It runs `WARM_S` seconds that do not count,
and then `SECONDS` that do, whatever the store does in them.

Invariants:
- Messages that a work consumes are loaded again and again, off the clock, so it never runs dry.
- Memory and disk are read after the same number of messages in every store.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from bench.peers.peer import Item, Peer, items, on_disk, resident

BATCH: Final = 32
_ROWS: Final = 1024
"""Those of a put of columns."""
QUEUES: Final = 8
THREADS: Final = 16
WARM_S = 3.0
SECONDS = 2.0
_PATIENCE_S: Final = 30.0
LOAD_S = 1.0
"""A load of messages that are consumed ends here, and the next begins when they are gone."""
WARM_DELIVERIES = 3
DELIVERIES = 2
"""So many take RocketMQ the seconds of other works. Each waits for its time off the clock."""
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

_DAY_MS: Final = 86_400_000
T = TypeVar("T")
Figures = dict[str, float]
Rows = dict[str, Figures]
Open = Callable[[bool], Peer]
Turn = Callable[[float], tuple[int, float]]
"""Works for at most so many seconds; how much it did, and in how many."""


def measured(turn: Turn, settle: Callable[[], None] = lambda: None) -> Figures:
    """The rate of a work that is warm; settling is on its clock."""
    rate = 0.0
    for seconds in (WARM_S, SECONDS):
        total, spent, begun = 0, 0.0, time.perf_counter()
        while spent < seconds or not total:
            # On a busy machine a short turn may end before anything was done.
            done, took = turn(seconds - spent if spent < seconds else seconds)
            total, spent = total + done, spent + took
            if not done and time.perf_counter() - begun > seconds + _PATIENCE_S:
                raise RuntimeError("a work did nothing")
        begin = time.perf_counter()
        settle()
        rate = total / (spent + time.perf_counter() - begin)
    return {"rate": rate}


def putting(peer: Peer, coming: Iterator[Item], size: int, places: list[Any] | None = None) -> Turn:
    """Puts the next messages, in batches of `size`."""

    def turn(seconds: float) -> tuple[int, float]:
        made = list(islice(coming, size * _CHUNK))
        batches = [made[at : at + size] for at in range(0, len(made), size)]
        done, begin = 0, time.perf_counter()
        for batch in batches:
            found = peer.put_batch(batch) if size > 1 else [peer.put(batch[0])]
            done += len(batch)
            if places is not None:
                places.extend(found)
            if time.perf_counter() - begin > seconds:
                break
        return done, time.perf_counter() - begin

    return turn


def load(turn: Turn, seconds: float) -> int:
    """Puts until there are no more messages, or the time is over."""
    total, spent = 0, 0.0
    while spent < seconds:
        done, took = turn(seconds - spent)
        if not done:
            break
        total, spent = total + done, spent + took
    return total


def _calling(calls: Iterator[int]) -> Turn:
    def turn(seconds: float) -> tuple[int, float]:
        done, begin = 0, time.perf_counter()
        for count in calls:
            done += count
            if time.perf_counter() - begin > seconds:
                break
        return done, time.perf_counter() - begin

    return turn


def _together(pool: ThreadPoolExecutor, work: Callable[[int], int]) -> tuple[int, float]:
    begin = time.perf_counter()
    done = sum(pool.map(work, range(THREADS)))
    return done, time.perf_counter() - begin


def _put(row: str, size: int, body: int) -> Callable[[Open, int], Rows]:
    def work(opens: Open, _: int) -> Rows:
        peer = opens(False)
        peer.create(8, QUEUES)
        coming = items(None, body, 8, QUEUES)
        return {row: measured(putting(peer, coming, size), peer.settle)}

    return work


def _put_columns(opens: Open, _: int) -> Rows:
    peer = opens(False)
    peer.create(8, QUEUES)
    coming = items(None, 128, 1, QUEUES)

    def turn(seconds: float) -> tuple[int, float]:
        parts = [list(islice(coming, _ROWS)) for _ in range(_CHUNK * BATCH // _ROWS)]
        return _calling(map(peer.put_columns, list(map(peer.columns_of, parts))))(seconds)

    return {"put_columns": measured(turn, peer.settle)}


def _put_sync(opens: Open, _: int) -> Rows:
    peer = opens(True)
    peer.create(8, QUEUES)
    own = [peer.another() for _ in range(THREADS)]
    made = [cycle(list(items(1000, 128, 8, QUEUES, n * 1000))) for n in range(THREADS)]

    def turn(seconds: float) -> tuple[int, float]:
        end = time.perf_counter() + seconds

        def put(number: int) -> int:
            done = 0
            while time.perf_counter() < end:
                own[number].put(next(made[number]))
                done += 1
            return done

        return _together(pool, put)

    with ThreadPoolExecutor(THREADS) as pool:
        return {"put_sync": measured(turn)}


def _read(opens: Open, count: int) -> Rows:
    """Pull, get and query, of one load."""
    peer, places = opens(False), list[Any]()
    peer.create(1, QUEUES)
    load(putting(peer, items(count, 128, 1, QUEUES), BATCH, places), 5 * LOAD_S)
    peer.settle()

    def pulls() -> Iterator[int]:
        while True:
            for queue in range(QUEUES if peer.queues_of_own else 1):
                cursor = None
                while True:
                    found, cursor = peer.pull(0, queue, cursor)
                    if not found:
                        break
                    yield len(found)

    random = Random(2)
    drawn = cycle(random.choices(places, k=len(places)))
    keys = cycle([f"order-{random.randrange(len(places))}" for _ in places])
    rows: Rows = {}
    for row, calls in (
        ("pull", pulls()),
        ("get", (len(peer.get(place)) > 0 for place in drawn)),
        ("query", (peer.query(0, key) for key in keys)),
    ):
        try:
            rows[row] = measured(_calling(calls))
        except NotImplementedError:
            continue
    return rows


def _pop(row: str, size: int) -> Callable[[Open, int], Rows]:
    def work(opens: Open, count: int) -> Rows:
        peer = opens(False)
        peer.create(1, QUEUES)
        coming = items(None, 128, 1, QUEUES)

        def pops() -> Iterator[int]:
            while handles := peer.pop(size):
                peer.ack(handles)
                yield len(handles)

        def turn(seconds: float) -> tuple[int, float]:
            load(putting(peer, islice(coming, count), BATCH), LOAD_S)
            peer.settle()
            return _calling(pops())(seconds)

        return {row: measured(turn)}

    return work


def _pop_threads(opens: Open, count: int) -> Rows:
    peer = opens(False)
    peer.create(1, QUEUES)
    coming = items(None, 128, 1, QUEUES)
    own = [peer.another() for _ in range(THREADS)]

    def turn(seconds: float) -> tuple[int, float]:
        each = load(putting(peer, islice(coming, count), BATCH), LOAD_S) // THREADS
        peer.settle()
        end = time.perf_counter() + seconds

        def pop(number: int) -> int:
            done = 0
            while done < each and time.perf_counter() < end and (handles := own[number].pop(1)):
                own[number].ack(handles)
                done += 1
            return done

        return _together(pool, pop)

    with ThreadPoolExecutor(THREADS) as pool:
        return {"pop_threads": measured(turn)}


def _put_delayed(opens: Open, _: int) -> Rows:
    peer, due = opens(False), _now_ms() + _DAY_MS
    peer.create(1, QUEUES)
    coming = items(None, 128, 1, QUEUES)

    def turn(seconds: float) -> tuple[int, float]:
        made = islice(coming, BATCH * _CHUNK)
        return _calling(_each(lambda i: peer.put_delayed(i, due), list(made)))(seconds)

    return {"put_delayed": measured(turn, peer.settle)}


def _deliver(opens: Open, count: int) -> Rows:
    """From the first delivery of messages that are due at one time to the last."""
    peer = opens(False)
    peer.create(1, QUEUES)
    coming = items(None, 128, 1, QUEUES)
    peer.delivered()

    def turn(_: float) -> tuple[int, float]:
        due, before = (_now_ms() // 1000 + 5) * 1000, peer.delivered()
        put = _load_delayed(peer, islice(coming, count), due)
        peer.settle()
        if _now_ms() > due - 1000 or peer.delivered() != before:
            raise RuntimeError("messages were due before all of them were put")
        while peer.delivered() == before:
            time.sleep(0.0005)
        begin = time.perf_counter()
        while peer.delivered() < before + len(put):
            time.sleep(0.0005)
        return len(put), time.perf_counter() - begin

    for _ in range(WARM_DELIVERIES):
        turn(0)
    counts, times = zip(*[turn(0) for _ in range(DELIVERIES)], strict=True)
    return {"deliver": {"rate": sum(counts) / sum(times)}}


def _cancel(opens: Open, count: int) -> Rows:
    peer = opens(False)
    peer.create(1, QUEUES)
    coming = items(None, 128, 1, QUEUES)

    def turn(seconds: float) -> tuple[int, float]:
        handles = _load_delayed(peer, islice(coming, count), _now_ms() + _DAY_MS)
        peer.settle()
        return _calling(_each(peer.cancel, handles))(seconds)

    return {"cancel": measured(turn, peer.settle)}


def _transaction(opens: Open, _: int) -> Rows:
    peer = opens(False)
    peer.create(8, QUEUES)
    coming = items(None, 128, 8, QUEUES)

    def turn(seconds: float) -> tuple[int, float]:
        return _calling(_each(peer.transact, list(islice(coming, BATCH * _CHUNK))))(seconds)

    return {"transaction": measured(turn, peer.settle)}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _each(call: Callable[[T], object], things: list[T]) -> Iterator[int]:
    for thing in things:
        call(thing)
        yield 1


def _load_delayed(peer: Peer, coming: Iterator[Item], due: int) -> list[Any]:
    """Puts messages that wait, for `LOAD_S` seconds at most; what cancels each."""
    found, end = [], time.perf_counter() + LOAD_S
    for item in coming:
        found.append(peer.put_delayed(item, due))
        if time.perf_counter() > end:
            break
    return found


def _topics(row: str, topics: int, rates: bool) -> Callable[[Open, int], Rows]:
    """Memory and disk of the same messages, of which each queue has one; then rates."""

    def work(opens: Open, count: int) -> Rows:
        peer = opens(False)
        peer.create(topics, QUEUES)
        first, queues = items(None, 128, topics, QUEUES), topics * QUEUES
        spread = (
            item._replace(topic=n // QUEUES, queue=n % QUEUES)
            for n, item in enumerate(islice(first, queues))
        )
        load(putting(peer, spread, BATCH), float("inf"))
        more = max(count // 4 - queues, 0)
        load(putting(peer, islice(first, more), BATCH), float("inf"))
        peer.settle()
        own = {
            "memory": resident(peer.pids()) / 1e6,
            "disk": on_disk(peer.folder) / (queues + more),
        }
        if not rates:
            return {row: own}
        batches = measured(putting(peer, first, BATCH), peer.settle)
        single = measured(putting(peer, first, 1), peer.settle)
        return {row: own | batches, f"{row}_single": single}

    return work


WORKS: Final[dict[str, Callable[[Open, int], Rows]]] = {
    "put_batch": _put("put_batch", BATCH, 128),
    "put_batch_1k": _put("put_batch_1k", BATCH, 1024),
    "put_columns": _put_columns,
    "put": _put("put", 1, 128),
    "put_sync": _put_sync,
    "read": _read,
    "pop_batch": _pop("pop_batch", BATCH),
    "pop_one": _pop("pop_one", 1),
    "pop_threads": _pop_threads,
    "put_delayed": _put_delayed,
    "deliver": _deliver,
    "cancel": _cancel,
    "transaction": _transaction,
    "topics_8": _topics("topics_8", 8, rates=False),
    "topics_500": _topics("topics_500", 500, rates=False),
    "topics_5000": _topics("topics_5000", 5000, rates=True),
}
"""Each is done by one process, and gives rows of the page."""


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
