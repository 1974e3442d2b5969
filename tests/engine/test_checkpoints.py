"""Checkpoints: the tail goes into RocksDB whole, every time."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from kvstore import Message, Store, StoreClosed, StoreConfig, TopicConfig
from kvstore.engine import upkeep
from kvstore.index import key_lookup, key_merge
from tests.support import inside
from tests.support.raising import raising
from tests.support.segment_files import batch, bodies
from tests.support.stores import SEGMENT, Opens


def test_a_checkpoint_empties_the_tail_and_covers_the_log(store: Store) -> None:
    store.put_batch(batch("t", 5, keys=["k"]))
    before = store.stats()
    assert (before.tail_entries, before.tail_keys, before.checkpointed_position) == (5, 10, 0)
    store.checkpoint()
    after = store.stats()
    assert (after.tail_entries, after.tail_keys) == (0, 0)
    assert after.checkpointed_position == after.durable_position == after.end_position


def test_a_checkpoint_of_many_queues_has_few_objects_for_each(opens: Opens) -> None:
    store = opens()
    store.create_topics([TopicConfig(name=f"t{n}", queues=50) for n in range(100)])
    queues = [(f"t{n}", queue) for n in range(100) for queue in range(50)]
    store.put_batch([Message(topic, b"", queue=queue) for topic, queue in queues])
    tracemalloc.start()
    try:
        store.checkpoint()
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 30 * len(queues)
    assert most < 330 * len(queues), "bytes a queue: 284, and 383 if each row were an object"


@pytest.mark.parametrize("times", [2, 3])
def test_a_checkpoint_after_ones_with_nothing_to_do_still_does_its_work(
    store: Store, times: int
) -> None:
    store.put_batch(batch("t", 5))
    for _ in range(times):
        store.checkpoint()
    store.put_batch(batch("t", 5))
    store.checkpoint()
    stats = store.stats()
    assert stats.tail_entries == 0
    assert stats.checkpointed_position == stats.end_position


def test_a_queue_that_goes_on_where_the_one_before_ends_keeps_its_own_entries(opens: Opens) -> None:
    store = opens()
    store.create_topic("t", 2)
    store.put_batch([Message("t", b"", queue=1)] * 5)
    store.checkpoint()
    # In one checkpoint: offsets 0 to 4 of queue 0, and 5 to 7 of queue 1.
    store.put_batch([Message("t", b"", queue=0)] * 5)
    store.put_batch([Message("t", b"", queue=1)] * 3)
    store.checkpoint()
    assert store.bounds("t", 0) == (0, 5)
    assert store.bounds("t", 1) == (0, 8)
    assert [m.queue for m in store.pull("t", 1, 0).messages] == [1] * 8
    assert store.verify().problems == []


@pytest.mark.parametrize(
    "step", ["locations.changed", "keys.written", "tags.written", "_cache_heads"]
)
def test_a_checkpoint_that_was_struck_behind_its_write_puts_no_key_twice(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = opens()
    store.create_topic("t", 1)
    store.put_batch(batch("t", 5, keys=["k"]))
    *way, name = ("index." + step).split(".")
    owner: object = inside.engine(store)
    for part in way:
        owner = getattr(owner, part)
    with monkeypatch.context() as patched:
        patched.setattr(type(owner), name, raising(MemoryError))
        with pytest.raises(MemoryError):
            store.checkpoint()
    assert store.stats().tail_entries == 0, "it was written: nothing is left for the next one"
    store.put_batch(batch("t", 2, keys=["k"]))
    store.checkpoint()
    store.seal()
    while inside.index(store).merge_due():
        inside.index(store).merge_next()
    _, positions = inside.keys(store).pairs(0)
    assert len(positions) == 2 * 7, "an id and a key of each"
    assert sorted(m.offset for m in store.query("t", "k")) == list(range(7))
    assert store.verify().problems == []
    store.close()
    again = opens()
    assert sorted(m.offset for m in again.query("t", "k")) == list(range(7))
    assert again.verify().problems == []


@pytest.mark.parametrize("reading", ["keys.read_again", "locations.forget"])
def test_a_change_that_was_struck_behind_its_write_is_known_though_it_is_not_read_at_once(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    """The next checkpoint reads it then."""
    store = opens()
    store.create_topic("t", 1)
    store.put_batch(batch("t", 5, keys=["k"]))

    def strike(*given: object, **named: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(type(inside.index(store).tags), "written", strike)
        owner, name = reading.split(".")
        patched.setattr(type(getattr(inside.index(store), owner)), name, strike)
        with pytest.raises(MemoryError):
            store.checkpoint()
    store.put_batch(batch("t", 2, keys=["k"]))
    store.checkpoint()
    assert store.stats().tail_entries == 0
    assert len(inside.keys(store).pairs(0)[1]) == 2 * 7
    assert [m.offset for m in store.pull("t", 0, 0, 10).messages] == list(range(7))


@pytest.mark.parametrize("ends", ["checkpoint", "close"])
@pytest.mark.parametrize("owner", ["index.families.write", "index.write_checkpoint"])
def test_what_came_behind_a_checkpoint_that_failed_is_in_the_next(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, owner: str, ends: str
) -> None:
    store = opens()
    store.create_topic("t", 1)
    store.put_batch(batch("t", 5, keys=["k"]))
    *way, name = owner.split(".")
    part: object = inside.engine(store)
    for step in way:
        part = getattr(part, step)
    with monkeypatch.context() as patched:
        patched.setattr(type(part), name, raising(MemoryError))
        with pytest.raises(MemoryError):
            store.checkpoint()
    store.put_batch(batch("t", 2, keys=["k"]))
    if ends == "checkpoint":
        store.checkpoint()
        stats = store.stats()
        assert (stats.tail_entries, stats.tail_keys) == (0, 0)
        assert stats.checkpointed_position == stats.end_position
    store.close()
    again = opens()
    assert (again.recovery.records, again.recovery.clean) == (0, True)
    assert len(bodies(again, "t", 0)) == 7
    assert again.verify().problems == []


def test_a_put_that_comes_while_the_store_closes_is_refused(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found the store open, and reaches the log when the last checkpoint has been written."""
    store = opens()
    store.create_topic("t", 1)
    acknowledged = [store.put("t", b"in time", queue=0).offset]
    tidy = inside.index(store).tidy

    def late() -> None:
        with pytest.raises(StoreClosed):
            acknowledged.append(inside.writer(store).put_batch(batch("t", 2))[0].offset)
        tidy()

    monkeypatch.setattr(inside.index(store), "tidy", late)
    store.close()
    again = opens()
    assert len(bodies(again, "t", 0)) == len(acknowledged)
    assert acknowledged == [0]


def test_verifying_and_sealing_an_idle_store_do_not_stop_checkpoints(store: Store) -> None:
    for _ in range(3):
        store.verify()
        store.seal()
        store.delete_topic(store.create_topic("x").name)
    store.put_batch(batch("t", 5))
    store.checkpoint()
    assert store.stats().tail_entries == 0


def test_a_checkpoint_of_a_new_store_twice_does_not_stop_checkpoints(opens: Opens) -> None:
    store = opens()
    store.checkpoint()
    store.checkpoint()
    store.create_topic("t")
    store.put_batch(batch("t", 5))
    store.checkpoint()
    assert store.stats().tail_entries == 0


def test_the_tail_stays_small_by_itself(opens: Opens) -> None:
    """Between two checkpoints are `checkpoint_bytes` of log, twice that at the most."""
    store = opens(StoreConfig(segment_size=SEGMENT, checkpoint_bytes=10_000))
    store.create_topic("t")
    for _ in range(50):
        store.put_batch(batch("t", 20))
        stats = store.stats()
        assert stats.end_position - stats.checkpointed_position < 30_000


def test_puts_wait_for_a_checkpoint_only_when_two_tails_are_full(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a housekeeper: each put that finds two tails full writes one, no other does."""
    tail = 10_000
    store = opens(StoreConfig(segment_size=SEGMENT, checkpoint_bytes=tail))
    inside.stop_housekeepers(store)
    store.create_topic("t")
    log, index = inside.log(store), inside.index(store)
    checkpoint, waited = store.checkpoint, 0

    def watched() -> None:
        nonlocal waited
        waited += 1
        checkpoint()

    inside.checkpoint_of_puts(store).replace(watched, monkeypatch)
    due = 0
    for _ in range(600):
        due += log.end - index.checkpoint.position >= 2 * tail
        store.put("t", bytes(100), queue=0)
        assert waited == due
        assert log.end - index.checkpoint.position < 2 * tail + 1000
    assert waited > 3


def test_a_clean_close_leaves_nothing_to_recover(opens: Opens) -> None:
    store = opens()
    store.create_topic("t")
    store.checkpoint()
    store.checkpoint()
    store.put_batch(batch("t", 5))
    store.close()
    again = opens()
    assert (again.recovery.records, again.recovery.clean) == (0, True)
    assert bodies(again, "t", 0) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_keys_are_found_while_a_checkpoint_merges_their_parts(store: Store, where: str) -> None:
    """Asked right before and right behind the WriteBatch, from another thread as readers are."""
    found: list[list[bytes]] = []
    families = inside.families(store)
    write = families.write

    def ask() -> None:
        thread = threading.Thread(
            target=lambda: found.append([m.body for m in store.query("t", "k")])
        )
        thread.start()
        thread.join()

    def watched(b: object, *, sync: bool = False) -> None:
        if where == "before":
            ask()
        write(b, sync=sync)  # type: ignore[arg-type]  # handed on
        if where == "after":
            ask()

    families.write = watched  # type: ignore[method-assign, assignment]  # to look between two steps
    for i in range(20):
        store.put("t", str(i).encode(), queue=0, keys=["k"])
        store.checkpoint()
    store.seal()
    families.write = write  # type: ignore[method-assign]  # as it was
    assert [len(seen) for seen in found[:20]] == list(range(1, 21))
    assert all(len(seen) == 20 for seen in found[20:])


def test_entries_are_read_while_a_checkpoint_or_a_repack_is_written(store: Store) -> None:
    found: list[list[bytes]] = []
    families = inside.families(store)
    write = families.write

    def watched(b: object, *, sync: bool = False) -> None:
        found.append(bodies(store, "t", 0))
        write(b, sync=sync)  # type: ignore[arg-type]  # handed on
        found.append(bodies(store, "t", 0))

    families.write = watched  # type: ignore[method-assign, assignment]  # to look between two steps
    for i in range(12):
        store.put("t", str(i).encode(), queue=0)
        store.checkpoint()
        expected = [str(j).encode() for j in range(i + 1)]
        assert found[-2:] == [expected, expected]
    store.seal()
    families.write = write  # type: ignore[method-assign]  # as it was
    assert found[-1] == found[-2] == [str(j).encode() for j in range(12)]


@pytest.mark.parametrize("how", ["sealed", "not sealed"])
def test_the_parts_of_the_key_index_have_a_bound_though_nobody_merges_in_the_background(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    bound = 16
    monkeypatch.setattr(upkeep, "_PARTS_MAX", bound)
    store = opens()
    inside.stop_housekeepers(store)
    store.create_topic("t", 1)
    keys = inside.engine(store).index.keys
    for n in range(10 * bound):
        store.put_batch(batch("t", 1, keys=[f"k{n}"]))
        if how == "sealed":
            store.seal()
        else:
            store.put_batch([Message("t", bytes(SEGMENT // 2), keys=["large"])])
            store.checkpoint()
        assert len(keys.parts()) <= bound
    for n in range(0, 10 * bound, 7):
        assert len(store.query("t", f"k{n}")) == 1


def test_a_checkpoint_merges_more_the_more_keys_it_adds(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are as small as they can be, and each sealed segment takes many."""
    bound = 8
    monkeypatch.setattr(upkeep, "_PARTS_MAX", bound)
    monkeypatch.setattr(upkeep, "_KEYS_A_STEP", 16)
    monkeypatch.setattr("kvstore.index.key_parts.PIECE_BLOCKS", 1)
    monkeypatch.setattr(key_lookup, "PIECE_BLOCKS", 1)
    monkeypatch.setattr(key_merge, "_PIECES_AT_ONCE", 1)
    store = opens()
    inside.stop_housekeepers(store)
    store.create_topic("t", 1)
    keys, most = inside.engine(store).index.keys, []
    for n in range(10 * bound):
        store.put_batch(batch("t", 500, keys=[f"k{n}"]))
        store.seal()
        most.append(len(keys.parts()))
    assert max(most) <= 4 * bound, most
    assert len(store.query("t", "k3", limit=1000)) == 500
