"""Keys of several segments in one generation: found while any tier has the message, and gone with
what is erased.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import MessageNotFound, Retention, Store, StoredMessage
from kvstore.index.dead_keys import mark
from kvstore.index.key_parts import GENERATION
from kvstore.index.keys import MESSAGE_KEYS, META
from kvstore.record.hashes import key_hash, key_hash_range
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import (
    SEGMENT,
    config,
    drop,
    filled,
    hand_over,
    merge,
    put_segments,
)
from tiering import Policy, Worker
from tiering.executor.pool import Inline

SEGMENTS = GENERATION + 2
EACH = 6


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    """A generation of eight segments, and two segments behind it."""
    with filled(tmp_path / "a", clock, SEGMENTS, EACH) as opened:
        inside.housekeeper(opened).stop()
        merge_keys(opened)
        assert [part.level for part in inside.keys(opened).parts()] == [1, 0, 0]
        yield opened


def merge_keys(store: Store) -> None:
    while inside.index(store).merge_due():
        inside.index(store).merge_next()


def drop_dead_keys(store: Store) -> None:
    while inside.index(store).dead_keys.due():
        inside.index(store).dead_keys.drop()


def asked(store: Store, clock: VirtualClock) -> list[list[StoredMessage]]:
    """The answers of queries: all, the newest few, and those of times at every border."""
    everything = store.query("orders", "all", limit=1000)
    assert [m.position for m in everything] == sorted(
        (m.position for m in everything), reverse=True
    )
    assert store.query("orders", "all", limit=3) == everything[:3]
    assert store.query("orders", "nowhere") == []
    out = [everything, store.query("visits", "k-3", limit=1000)]
    for m in everything[::5]:
        out += [
            store.query("orders", "all", begin=m.stored_at, limit=1000),
            store.query("orders", "all", end=m.stored_at, limit=1000),
            store.query("orders", "all", begin=m.stored_at, end=m.stored_at),
        ]
        assert store.find(m.message_id) == m
    return out


def keys_of(store: Store, segment: int) -> int:
    """How many pairs of a segment there are in the index."""
    return len(inside.keys(store).pairs(segment)[0])


def test_queries_say_the_same_whichever_segments_of_a_generation_are_archived(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    """Newest first with a limit, by time, by id; also once it was opened anew."""
    before = asked(store, clock)
    made = [hand_over(store, [n]) for n in (3, 0, SEGMENTS - 1)]
    assert asked(store, clock) == before
    merge(store, [made[0].rows[0].number, made[1].rows[0].number])
    hand_over(store, [4, 5])
    assert asked(store, clock) == before
    assert store.verify().problems == []
    store.close()
    with kvstore.open(tmp_path / "a", config(clock)) as again:
        assert asked(again, clock) == before
        hand_over(again, [1, 2, 6, 7])
        assert asked(again, clock) == before
        assert {part.level for part in inside.keys(again).parts()} == {0}


def test_a_generation_of_which_all_is_archived_leaves_no_row(store: Store) -> None:
    for number in range(SEGMENTS):
        assert any(inside.families(store).rows(MESSAGE_KEYS, b"")), number
        hand_over(store, [number])
    assert list(inside.families(store).rows(MESSAGE_KEYS, b"")) == []


def test_what_expires_in_an_archive_is_found_by_no_key_of_its_generation(store: Store) -> None:
    gone = [m for m in store.query("orders", "all", limit=1000) if m.position // SEGMENT == 2]
    before = store.query("orders", "all", limit=1000)
    drop(store, hand_over(store, [2]).rows[0].number)
    assert gone
    assert store.query("orders", "all", limit=1000) == [m for m in before if m not in gone]
    for message in gone:
        with pytest.raises(MessageNotFound):
            store.find(message.message_id)


def test_retention_passes_over_what_is_gone_of_a_generation(
    store: Store, clock: VirtualClock, tmp_path: Path
) -> None:
    before = store.query("orders", "all", limit=1000)
    store.close()
    kept = Retention(max_bytes=5 * SEGMENT)
    with kvstore.open(tmp_path / "a", config(clock, retention=kept, delete_interval=0)) as again:
        inside.housekeeper(again).stop()
        assert again.apply_retention() > 3
        first = again.stats().first_position
        assert 0 < first < GENERATION * SEGMENT
        assert again.query("orders", "all", limit=1000) == [
            m for m in before if m.position >= first
        ]
        assert keys_of(again, 0) > 0
        put_segments(again, clock, 6, EACH)
        again.apply_retention()
        assert again.stats().first_position >= GENERATION * SEGMENT
        assert keys_of(again, 0) == 0
        assert again.verify().problems == []


def test_erasing_segments_takes_their_keys_out_of_the_generation(store: Store) -> None:
    """Blocks and filters: the hash of an erased key is in no row any more."""
    others = [keys_of(store, n) for n in range(SEGMENTS)]
    found = store.query("orders", "all", limit=1000)
    victims = [m.message_id.encode() for m in found if m.position < SEGMENT]
    ranges = [key_hash_range(victim) for victim in victims]
    # Of one topic, memory answers for most of them from then on.
    ranges += [(key_hash(b"orders", victim),) * 2 for victim in victims]
    for low, high in ranges:
        assert len(list(inside.keys(store).find(low, high, 0, 99))) == 1
    store.handover.hand_over([0], [], _all_queues(store), erase=True)
    drop_dead_keys(store)
    assert [keys_of(store, n) for n in range(SEGMENTS)] == [0, *others[1:]]
    for low, high in ranges:
        assert list(inside.keys(store).find(low, high, 0, 99)) == []
    assert store.verify().problems == []
    store.close()


@pytest.mark.parametrize("archived", [[1, 3], [0, 1]], ids=str)
def test_erasing_what_is_archived_takes_its_keys_out_of_the_generation(
    store: Store, archived: list[int]
) -> None:
    """They were of no use there, and stayed: the rest of the generation was in the log, behind
    them or on both sides.
    """
    before = [keys_of(store, n) for n in range(4)]
    hand_over(store, archived)
    assert keys_of(store, 1) > 0
    store.handover.forget_keys()
    expected = [0 if n in archived else count for n, count in enumerate(before)]
    assert [keys_of(store, n) for n in range(4)] == expected


def test_what_a_worker_erases_is_in_no_generation_any_more(
    store: Store, clock: VirtualClock
) -> None:
    hashes = [key_hash(topic.encode(), b"k-3") for topic in ("orders", "visits")]
    others = len(store.query("orders", "k-4"))
    assert any(list(inside.keys(store).find(h, h, 0, 99)) for h in hashes)
    clock.advance(86_400)
    policy = Policy(hot_for=0, warm="archive", clock_doubt=0.0)
    with Worker(store, policy, executor=Inline()) as worker:
        assert worker.erase(key="k-3").is_proven
    assert {part.level for part in inside.keys(store).parts()} > {0}
    for hashed in hashes:
        assert list(inside.keys(store).find(hashed, hashed, 0, 99)) == []
    assert len(store.query("orders", "k-4")) == others > 0


def test_erasing_waits_for_a_merge_that_holds_the_keys(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("key_parts.PIECE_BLOCKS", "key_lookup.PIECE_BLOCKS", "key_merge._PIECES_AT_ONCE"):
        monkeypatch.setattr(f"kvstore.index.{name}", 1)
    with filled(tmp_path / "a", clock, 0, EACH) as store:
        inside.housekeeper(store).stop()
        put_segments(store, clock, SEGMENTS, EACH)
        for _ in range(2):
            inside.index(store).merge_next()
        assert inside.keys(store).is_merging
        hand_over(store, [1])
        store.handover.forget_keys()
        merge_keys(store)  # nothing that was merged before has them
        assert keys_of(store, 1) == 0
        assert store.verify().problems == []


def test_a_mark_of_an_older_version_costs_a_segment_of_the_log_no_key(store: Store) -> None:
    """They marked segments with keys of deleted topics as well."""
    before = [keys_of(store, n) for n in range(SEGMENTS)]
    batch = inside.families(store).batch()
    mark(batch, 2)
    inside.families(store).write(batch)
    inside.index(store).dead_keys.read_again()
    drop_dead_keys(store)
    assert [keys_of(store, n) for n in range(SEGMENTS)] == before
    assert list(inside.families(store).rows(META, b"dead_keys/", b"dead_keys0")) == []


def _all_queues(store: Store) -> list[tuple[int, int]]:
    return [(inside.topics(store).get(t.name).id, q) for t in store.topics() for q in range(2)]
