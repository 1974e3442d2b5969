"""Several archives become one that holds the same messages, each queue in one piece."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore.errors import ArchiveDamaged
from tests.tiering.archive.making import (
    MemorySource,
    Queue,
    drawn_queues,
    make,
    plain_queues,
)
from tests.tiering.merge.merging import (
    STORE,
    deal,
    made_of,
    merged,
    records_in,
    records_of,
    topics_of,
)
from tiering.archive.archive_check import archive_problems
from tiering.archive.archive_reader import Archive
from tiering.merge.partition import Dropped


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(drawn_queues(), st.data())
def test_any_messages_in_any_archives_come_out_of_any_merge_as_they_were(
    queues: list[Queue], data: st.DataObject
) -> None:
    number = data.draw(st.integers(1, 4))
    drawn = {
        (queue.topic.name, queue.queue, offset): data.draw(st.integers(0, number - 1))
        for queue in queues
        for offset in queue.records
    }
    dealt = deal(queues, lambda queue, offset: drawn[queue.topic.name, queue.queue, offset])
    left = made_of(dealt)
    while len(left) > 1:
        count = data.draw(st.integers(2, len(left)))
        chosen = sorted(data.draw(st.permutations(range(len(left))))[:count])
        result = merged([left[n] for n in chosen])
        left = [one for n, one in enumerate(left) if n not in chosen] + [result.data]
        assert result.merged.dropped == Dropped()
    if not left:
        return
    archive = Archive.open(MemorySource(left[0]))
    assert records_in(archive) == records_of(queues)
    assert list(archive_problems(archive)) == []


def test_a_merged_archive_says_what_it_was_made_of() -> None:
    queues = plain_queues(messages=30)
    first, second, third = made_of(deal(queues, lambda _, offset: offset // 10))
    one = merged([first, second]).data
    both = merged([one, third])
    manifest = both.open().manifest
    assert manifest.generation == 2
    assert manifest.retention_class == "week"
    assert manifest.messages == both.merged.messages == 30 * len(queues)
    made = both.merged.made
    assert made is not None
    assert made.size == len(both.data)
    assert [(q.topic, q.queue, q.first, q.last, q.messages) for q in made.queues] == [
        (queue.topic.id, queue.queue, 0, 29, 30) for queue in queues
    ]


def test_the_same_archives_give_the_same_bytes() -> None:
    archives = made_of(deal(plain_queues(), lambda _, offset: offset % 3))
    assert merged(archives).data == merged(archives).data


def test_a_merge_of_everything_is_the_archive_that_would_have_been_made_at_once() -> None:
    queues = plain_queues(messages=30)
    result = merged(made_of(deal(queues, lambda _, offset: offset // 7)))
    at_once = Archive.open(MemorySource(make(queues).data))
    for number, queue, blocks in at_once.directory.queues():
        mine = result.open().blocks(at_once.directory.topic_id(number), queue)
        assert len(mine) == len(blocks)


def test_topics_that_were_deleted_are_left_out() -> None:
    queues = plain_queues(topics=3, messages=20)
    archives = made_of(deal(queues, lambda _, offset: offset // 10))
    topics = topics_of(*archives)
    gone = queues[0].topic.id
    del topics[gone]
    result = merged(archives, topics)
    assert result.merged.dropped == Dropped(deleted=40)
    assert records_in(result.open()) == records_of(q for q in queues if q.topic.id != gone)
    assert set(result.merged.queues) == {(q.topic.id, q.queue) for q in queues}


def test_a_topic_whose_time_is_over_in_one_archive_is_left_out_of_that_one_alone() -> None:
    queues = plain_queues(topics=2, queues=1, messages=20)
    archives = made_of(deal(queues, lambda _, offset: offset // 10))
    over = queues[0].topic.id
    result = merged(archives, unkept=[frozenset({over}), frozenset()])
    assert result.merged.dropped == Dropped(over=10)
    found = records_in(result.open())
    assert list(found[queues[0].topic.name, 0]) == list(range(10, 20))
    assert list(found[queues[1].topic.name, 0]) == list(range(20))


def test_where_nothing_is_left_there_is_no_archive_and_no_file() -> None:
    result = merged(made_of([plain_queues(messages=5)]), topics={})
    assert result.merged.made is None
    assert result.data == b""
    assert result.merged.dropped.total == result.merged.messages == 30


def test_an_offset_that_two_archives_hold_is_refused() -> None:
    (data,) = made_of([plain_queues(messages=3)])
    with pytest.raises(ArchiveDamaged, match="both hold offset 0"):
        merged([data, data])


def test_a_damaged_block_ends_the_merge() -> None:
    (data,) = made_of([plain_queues(messages=20)])
    broken = bytearray(data)
    broken[40] ^= 1
    with pytest.raises(ArchiveDamaged):
        merged([bytes(broken)])


def test_another_archive_than_the_catalog_has_is_refused() -> None:
    data, other = made_of([plain_queues(messages=3), plain_queues(messages=4)])
    with pytest.raises(ArchiveDamaged, match="another archive"):
        merged([data], catalog=[other])


def test_a_merge_names_the_stores_of_which_it_has_archives() -> None:
    archives = made_of(deal(plain_queues(messages=4), lambda _, offset: offset % 2))
    assert merged(archives).open().manifest.ancestors == ()
    new, newer = "e" * 32, "f" * 32
    first = merged(archives, store_id=new)
    assert first.open().manifest.ancestors == (STORE,)
    again = merged([first.data], store_id=newer).open().manifest
    assert (again.store_id, again.ancestors) == (newer, tuple(sorted((STORE, new))))
    assert merged([first.data], store_id=new).open().manifest.ancestors == (STORE,)


def test_what_is_read_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiering.merge.partition_task.WINDOW_BYTES", 1)
    monkeypatch.setattr("tiering.merge.partition_task._WINDOW_MIN", 1)
    queues = plain_queues(messages=30)
    archives = made_of(deal(queues, lambda _, offset: offset % 2))
    assert records_in(merged(archives).open()) == records_of(queues)
