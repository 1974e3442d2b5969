"""Messages that a transaction prepared or took back are in no queue, but in archives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
import tiering
from kvstore import (
    Message,
    MessageNotFound,
    Store,
    StoreConfig,
    StoredMessage,
    TransactionEnded,
)
from kvstore.api.founding import rebuild
from kvstore.core.names import TIMER_TOPIC, TRANSACTION_HALF_TOPIC
from kvstore.errors import OffsetNotFound
from tests.fixtures import unpack_fixture
from tests.reference.encode import blank
from tests.rocketmq.logs import NOW, make_store, record
from tests.support.clock import VirtualClock
from tests.support.contents import query_any
from tests.support.waiting import until
from tiering import Policy, Worker

POLICY = Policy(max_bytes=1, warm="archive", watermarks=None, clock_doubt=0.0)
SEGMENT = 64 << 10
PREPARED, TAKEN_BACK = 4, 12


def config(**changed: Any) -> StoreConfig:
    changed = {"clock": VirtualClock()} | changed
    return StoreConfig(checkpoint_interval=1e9, retention_interval=1e9, **changed)


def loose(store: Store, positions: list[int]) -> dict[Any, Any]:
    """The answers about records, whether any queue has them or not."""
    out: dict[Any, Any] = {}
    for position in positions:
        found = store.read_at(position)
        out["at", position] = found
        for name in (found.position_id, found.message_id):
            out["find", name] = outcome(store.find, name)
        for key in found.keys:
            out["key", key] = query_any(store, found.topic, key)
    return out


def whole(store: Store, positions: list[int]) -> dict[Any, Any]:
    """All records, and all that queues have; messages that wait move in theirs."""
    return {position: store.read_at(position) for position in positions} | {
        (topic.name, queue): found
        for topic in store.topics()
        if topic.name not in (TIMER_TOPIC, TRANSACTION_HALF_TOPIC)
        for queue in range(topic.read_queues)
        for low in (store.bounds(topic.name, queue).min_offset,)
        if (found := store.pull(topic.name, queue, low, 1000).messages)
    }


def outcome(call: Callable[[Any], StoredMessage], asked: object) -> StoredMessage | None:
    try:
        return call(asked)
    except MessageNotFound:
        return None


def test_a_log_of_rocketmq_gives_all_its_records_from_archives_too(tmp_path: Path) -> None:
    fixture = unpack_fixture("classic", tmp_path)
    kvstore.import_rocketmq(fixture.store, tmp_path / "a", config())
    every = [m["physicalOffset"] for m in fixture.messages]
    kinds = {m["physicalOffset"]: m["sysFlag"] & 12 for m in fixture.messages}
    positions = [p for p, kind in kinds.items() if kind]
    assert [kinds[p] for p in positions].count(PREPARED) == 2
    assert TAKEN_BACK in kinds.values()
    with kvstore.open(tmp_path / "a", config()) as store:
        store.seal()
        said, pulled = loose(store, positions), whole(store, every)
        # Each message that was delayed or prepared there, and waited, was put anew to wait here.
        continued = store.timers().count + store.transactions().count
        with Worker(store, POLICY) as worker:
            assert not worker.run_once().failed
            assert store.stats().segments == 1
            assert sum(a.messages for a in worker.archives()) == len(every) + continued
            worker.merge()
            assert (loose(store, positions), whole(store, every)) == (said, pulled)
            assert worker.verify().problems == []
    rebuild(tmp_path / "a", config())
    with kvstore.open(tmp_path / "a", config()) as store:
        assert (loose(store, positions), whole(store, every)) == (said, pulled)
    tiering.restore(tmp_path / "a" / "archive", tmp_path / "b")
    with kvstore.open(tmp_path / "b", config()) as store:
        assert loose(store, positions) == said
        assert whole(store, every) == pulled


def half(position: int, n: int, flags: int, topic: str = "T") -> bytes:
    properties = f"KEYS\x01half-{n} all\x02UNIQ_KEY\x01U{n}\x02".encode()
    return record(position, b"%d" % n * 200, topic=topic, system_flags=flags, properties=properties)


@pytest.fixture
def adopted(tmp_path: Path) -> tuple[Path, dict[str, list[int]]]:
    """A store of two full segments, the second of halves alone, of a topic that has messages, and
    of one that has no other.
    """
    segments, positions = [], {"T": list[int](), "only": list[int]()}
    for number in (0, 1):
        data = b""
        for n in range(14):
            topic = "only" if number and n % 2 else "T"
            flags = (PREPARED, TAKEN_BACK)[n % 3 == 0] if number else 0
            at = number * SEGMENT + len(data)
            if flags:
                positions[topic].append(at)
                data += half(at, n, flags, topic)
            else:
                data += record(at, b"whole %d" % n, offset=n, stored_at=NOW)
        left = SEGMENT - len(data)
        segments.append(data + (blank(left) + bytes(left))[:left])
    at = 2 * SEGMENT
    last = record(at, b"last", offset=14, stored_at=NOW)
    segments.append(last + bytes(SEGMENT - len(last)))
    make_store(tmp_path / "source", segments)
    kvstore.import_rocketmq(tmp_path / "source", tmp_path / "a", config())
    return tmp_path / "a", positions


def test_a_segment_of_nothing_else_is_archived_and_read_by_position_and_key(
    adopted: tuple[Path, dict[str, list[int]]],
) -> None:
    path, positions = adopted
    every = sorted(p for some in positions.values() for p in some)
    with kvstore.open(path, config()) as store:
        before = loose(store, every)
        assert len(before["key", "all"]) > 1
        with Worker(store, POLICY) as worker:
            assert not worker.run_once().failed
            assert store.stats().segments == 1
            assert loose(store, every) == before
            assert store.bounds("T", 0) == (0, 15)
            with pytest.raises(OffsetNotFound):
                store.get("only", 0, 0)
            worker.merge()
        assert loose(store, every) == before
        assert [m.offset for m in store.pull("T", 0, 0, 100).messages] == list(range(15))
        assert store.verify(archives=True).problems == []
        store.delete_topic("only")
        assert store.find("U2") == before["find", "U2"]


def test_those_of_a_deleted_topic_are_not_given_to_the_one_made_again(
    adopted: tuple[Path, dict[str, list[int]]],
) -> None:
    path, positions = adopted
    with kvstore.open(path, config()) as store:
        before = store.query("T", "all", limit=100)
        assert before
        store.delete_topic("only")
        store.create_topic("only", queues=1)
        with Worker(store, POLICY) as worker:
            assert not worker.run_once().failed
            assert sum(a.messages for a in worker.archives()) == 14 + len(positions["T"])
        assert store.query("only", "all") == []
        assert store.query("T", "all", limit=100) == before


def test_how_waits_ended_is_known_from_archives_when_the_topic_is_gone(tmp_path: Path) -> None:
    clock = VirtualClock()
    settings = config(clock=clock, segment_size=SEGMENT)
    with kvstore.open(tmp_path / "s", settings) as store:
        for topic in ("gone", "stays"):
            store.create_topic(topic, queues=1)
        delivered, waits = (store.put("gone", b"", delay=s).message_id for s in (1, 9999))
        committed, rolled_back, prepared = (
            store.prepare("gone", b"", group="pay").message_id for _ in range(3)
        )
        store.commit(committed)
        store.rollback(rolled_back)
        clock.advance(5)
        until(lambda: store.stats().delays.delivered == 1)
        store.delete_topic("gone")
        store.put_batch([Message("stays", bytes(2000))] * 100)

        def check(store: Store) -> None:
            assert (store.cancel(delivered), store.cancel(waits)) == (False, True)
            assert store.commit(committed).topic == "gone"
            for message_id in (rolled_back, prepared):
                store.rollback(message_id)
                with pytest.raises(TransactionEnded, match="rolled back"):
                    store.commit(message_id)

        check(store)
        with Worker(store, POLICY) as worker:
            assert not worker.run_once().failed
            assert store.stats().segments < 4
            check(store)
            worker.merge()
            check(store)
    rebuild(tmp_path / "s", settings)
    with kvstore.open(tmp_path / "s", settings) as store:
        check(store)


def test_erasing_reaches_them_in_segments_and_archives(
    adopted: tuple[Path, dict[str, list[int]]],
) -> None:
    path, positions = adopted
    with kvstore.open(path, config()) as store, Worker(store, POLICY) as worker:
        report = worker.erase(key="half-2")
        assert (report.is_proven, report.messages, report.segments) == (True, 1, [1])
        worker.run_once()
        report = worker.erase(key="half-4")
        assert (report.is_proven, report.messages, len(report.rewritten)) == (True, 1, 1)
        left = [p for some in positions.values() for p in some]
        found = [m for p in left if (m := outcome(store.read_at, p)) is not None]
        keys = {key for m in found for key in m.keys}
        assert keys == {"all"} | {f"half-{n}" for n in range(14) if n not in (2, 4)}


def test_a_compacted_topic_keeps_them_whatever_their_keys(
    adopted: tuple[Path, dict[str, list[int]]],
) -> None:
    path, positions = adopted
    every = sorted(p for some in positions.values() for p in some)
    with kvstore.open(path, config()) as store:
        store.create_topic("C", kind="compacted")
        store.put_batch([Message("C", b"%d" % n * 90, keys=("one",)) for n in range(80)])
        store.seal()
        before = loose(store, every)
        with Worker(store, POLICY) as worker:
            worker.run_once()
            worker.merge()
        assert loose(store, every) == before
