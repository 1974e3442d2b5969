"""`Store.segments`: what each sealed segment holds, from the index alone."""

from __future__ import annotations

from pathlib import Path

import kvstore
from kvstore import Message, StoreConfig
from tests.support.clock import VirtualClock

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
BODY = bytes(1000)


def filled(path: Path, clock: VirtualClock) -> list[kvstore.PutResult]:
    """Topics a and b, two sealed segments and a third one begun; an hour between messages."""
    put = []
    with kvstore.open(path, StoreConfig(segment_size=64 << 10, clock=clock)) as store:
        for name in ("a", "b"):
            store.create_topic(name, queues=2)
        for number in range(120):
            name = "a" if number % 3 else "b"
            put += store.put_batch([Message(name, BODY, queue=number % 2)])
            clock.advance(3600)
        assert store.stats().segments >= 3
    return put


def test_each_segment_says_how_much_each_topic_has_in_it_and_when_it_was_stored(
    tmp_path: Path,
) -> None:
    put = filled(tmp_path, VirtualClock(START_MS))
    with kvstore.open(tmp_path, read_only=True) as store:
        found = store.segments()
        last = store.stats().end_position // (64 << 10)
    assert [s.number for s in found] == list(range(last))
    for segment in found:
        here = [(n, r) for n, r in enumerate(put) if r.position >> 16 == segment.number]
        assert (segment.position, segment.bytes) == (segment.number << 16, 64 << 10)
        assert segment.oldest == START_MS + here[0][0] * HOUR_MS
        assert segment.newest == START_MS + here[-1][0] * HOUR_MS
        assert segment.record_bytes == sum(r.size for _, r in here)
        for share in segment.topics:
            mine = [(n, r) for n, r in here if r.topic == share.topic]
            assert share.messages == len(mine)
            assert share.bytes == sum(r.size for _, r in mine)
            assert share.oldest == START_MS + mine[0][0] * HOUR_MS
            assert share.newest == START_MS + mine[-1][0] * HOUR_MS


def test_what_a_deleted_topic_left_is_not_counted(tmp_path: Path) -> None:
    filled(tmp_path, VirtualClock(START_MS))
    with kvstore.open(tmp_path) as store:
        before = {share.topic: share for share in store.segments()[0].topics}
        store.delete_topic("b")
        after = store.segments()[0]
    assert after.topics == [before["a"]]
    assert after.record_bytes == before["a"].bytes


def test_a_store_without_sealed_segments_has_nothing_to_say(tmp_path: Path) -> None:
    with kvstore.open(tmp_path, StoreConfig(segment_size=64 << 10)) as store:
        store.create_topic("a")
        store.put("a", b"")
        assert store.segments() == []
        store.seal()
        [found] = store.segments()
        assert found.topics[0].messages == 1
