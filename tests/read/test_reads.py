"""Reading by offset, position and id, and the typed answer where there is nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import (
    CallerError,
    Message,
    MessageNotFound,
    OffsetNotFound,
    PullStatus,
    QueueNotFound,
    Retention,
    Store,
    StoreConfig,
    TopicNotFound,
)
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.segment_files import batch, blanks
from tests.support.stores import SEGMENT, Opens, settings


def test_get_returns_the_message_at_an_offset(store: Store) -> None:
    store.put_batch(batch("t", 5))
    assert [store.get("t", 0, i).body for i in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("offset", [-1, 5, 6, 1 << 62, -(1 << 70)])
def test_get_outside_the_bounds_says_the_bounds(store: Store, offset: int) -> None:
    store.put_batch(batch("t", 5))
    with pytest.raises(OffsetNotFound) as caught:
        store.get("t", 0, offset)
    assert (caught.value.min_offset, caught.value.max_offset) == (0, 5)
    assert isinstance(caught.value, LookupError)


def test_get_of_an_empty_queue_says_that_it_has_none(store: Store) -> None:
    with pytest.raises(OffsetNotFound) as caught:
        store.get("t", 3, 0)
    assert (caught.value.min_offset, caught.value.max_offset) == (0, 0)


WRONG_QUEUES: list[Any] = [4, -1, "0", None, 0.0, False, 1 << 40]
WRONG_NUMBERS: list[Any] = ["0", None, 0.0, True, b"1"]


@pytest.mark.parametrize("queue", WRONG_QUEUES)
def test_a_queue_that_the_topic_has_not_is_refused_by_every_read(store: Store, queue: Any) -> None:
    for call in (
        lambda: store.get("t", queue, 0),
        lambda: store.pull("t", queue, 0),
        lambda: store.bounds("t", queue),
        lambda: store.offset_at("t", queue, 0),
        lambda: store.commit_offset("g", "t", queue, 0),
        lambda: store.committed_offset("g", "t", queue),
    ):
        with pytest.raises(QueueNotFound):
            call()


@pytest.mark.parametrize("topic", ["nowhere", "", "a b", "t" * 300])
def test_a_topic_that_is_not_there_is_told_by_every_read(store: Store, topic: str) -> None:
    for call in (
        lambda: store.get(topic, 0, 0),
        lambda: store.pull(topic, 0, 0),
        lambda: store.bounds(topic, 0),
        lambda: store.offset_at(topic, 0, 0),
        lambda: store.query(topic, "k"),
        lambda: store.topic(topic),
        lambda: store.delete_topic(topic),
        lambda: store.alter_topic(topic, queues=1),
        lambda: store.committed_offset("g", topic, 0),
        lambda: store.commit_offset("g", topic, 0, 0),
    ):
        with pytest.raises(TopicNotFound):
            call()


@pytest.mark.parametrize("topic", [None, 5, b"t", ["t"], "\ud800"])
def test_a_topic_that_is_no_text_is_the_callers_mistake(store: Store, topic: Any) -> None:
    for call in (
        lambda: store.get(topic, 0, 0),
        lambda: store.pull(topic, 0, 0),
        lambda: store.query(topic, "k"),
        lambda: store.topic(topic),
    ):
        with pytest.raises(CallerError):
            call()


@pytest.mark.parametrize("number", WRONG_NUMBERS)
def test_a_number_that_is_none_is_the_callers_mistake(store: Store, number: Any) -> None:
    store.put_batch(batch("t", 2))
    calls: list[Callable[[], object]] = [
        lambda: store.get("t", 0, number),
        lambda: store.pull("t", 0, number),
        lambda: store.pull("t", 0, 0, number),
        lambda: store.read_at(number),
        lambda: store.offset_at("t", 0, number),
        lambda: store.query("t", "k", limit=number),
        lambda: store.commit_offset("g", "t", 0, number),
    ]
    if number is not None:
        calls += [
            lambda: store.pull("t", 0, 0, max_bytes=number),
            lambda: store.query("t", "k", begin=number),
            lambda: store.query("t", "k", end=number),
            lambda: store.query("t", "k", begin=number, end=5),
        ]
    for call in calls:
        with pytest.raises(CallerError):
            call()


@pytest.mark.parametrize("text", ["", None, 5, b"k"])
def test_a_key_or_id_that_is_no_text_is_the_callers_mistake(store: Store, text: Any) -> None:
    for call in (lambda: store.query("t", text), lambda: store.find(text)):
        with pytest.raises(CallerError):
            call()


# --- pull ---


@pytest.fixture
def ageing(opens: Opens) -> Store:
    """Queue 0 of "t" holds offsets 4 to 9: the segment with 0 to 3 is gone."""
    clock = VirtualClock()
    kept = Retention(hot_for=60)
    # Retention is applied when the test says so, and by nobody else.
    store = opens(
        StoreConfig(segment_size=SEGMENT, clock=clock, retention=kept, retention_interval=1e9)
    )
    store.create_topic("t")
    store.put_batch(batch("t", 4, keys=["k"]))
    store.seal()
    clock.advance(40)
    store.put_batch(batch("t", 6, keys=["k"]))
    store.checkpoint()
    clock.advance(40)
    store.apply_retention()
    assert store.stats().first_position == 0, "a segment is as old as the first record behind it"
    clock.advance(40)
    assert store.apply_retention() == 1
    return store


@pytest.mark.parametrize(
    ("offset", "status", "following", "count"),
    [
        (-1, PullStatus.OFFSET_TOO_SMALL, 4, 0),
        (0, PullStatus.OFFSET_TOO_SMALL, 4, 0),
        (3, PullStatus.OFFSET_TOO_SMALL, 4, 0),
        (4, PullStatus.FOUND, 10, 6),
        (9, PullStatus.FOUND, 10, 1),
        (10, PullStatus.OFFSET_OVERFLOW_ONE, 10, 0),
        (11, PullStatus.OFFSET_OVERFLOW_BADLY, 10, 0),
        (1 << 62, PullStatus.OFFSET_OVERFLOW_BADLY, 10, 0),
    ],
)
def test_pull_says_where_an_offset_lies_and_where_to_go_on(
    ageing: Store, offset: int, status: PullStatus, following: int, count: int
) -> None:
    pulled = ageing.pull("t", 0, offset)
    assert (pulled.status, pulled.next_offset, len(pulled.messages)) == (status, following, count)
    assert (pulled.min_offset, pulled.max_offset) == (4, 10) == ageing.bounds("t", 0)


def test_what_went_with_its_segment_is_not_found_any_more(ageing: Store) -> None:
    assert len(ageing.query("t", "k")) == 6
    with pytest.raises(OffsetNotFound):
        ageing.get("t", 0, 3)
    with pytest.raises(MessageNotFound):
        ageing.read_at(0)
    assert ageing.offset_at("t", 0, 0) == 4
    assert ageing.verify().problems == []


def test_a_queue_that_lost_all_its_messages_goes_on_where_it_was(
    ageing: Store, opens: Opens
) -> None:
    ageing.put("t", b"", queue=1)
    ageing.seal()
    ageing.config.clock.sleep(100)
    ageing.put("t", b"", queue=1)
    ageing.config.clock.sleep(100)
    assert ageing.apply_retention() == 1
    store = ageing
    for _ in range(2):
        assert store.bounds("t", 0) == (10, 10)
        assert store.pull("t", 0, 3).status == PullStatus.OFFSET_TOO_SMALL
        assert store.pull("t", 0, 10).status == PullStatus.OFFSET_OVERFLOW_ONE
        assert store.pull("t", 0, 10).next_offset == 10
        assert store.offset_at("t", 0, 0) == 10
        assert store.offset_at("t", 0, 0, upper=True) == 0
        store.close()
        store = opens()
    assert store.put("t", b"", queue=0).offset == 10


def test_pull_of_a_queue_never_used(store: Store) -> None:
    for offset in (-1, 0, 1, 99):
        pulled = store.pull("t", 0, offset)
        assert pulled.status == PullStatus.NO_MESSAGE_IN_QUEUE
        assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (0, 0, 0)


@pytest.mark.parametrize("limit", [1, 2, 9, 10, 11, 1 << 20])
@pytest.mark.parametrize("state", ["tail", "checkpointed", "sealed"])
def test_pull_returns_up_to_limit_messages(store: Store, limit: int, state: str) -> None:
    store.put_batch(batch("t", 10))
    if state == "checkpointed":
        store.checkpoint()
    if state == "sealed":
        store.seal()
    pulled = store.pull("t", 0, 3, limit)
    expected = min(limit, 7)
    assert [m.offset for m in pulled.messages] == list(range(3, 3 + expected))
    assert pulled.next_offset == 3 + expected


def test_pull_goes_from_the_checkpointed_part_over_into_the_tail(store: Store) -> None:
    for part in range(4):
        store.put_batch(batch("t", 700, tag=str(part)))
        if part < 3:
            store.checkpoint()
    pulled = store.pull("t", 0, 5, 2790)
    assert [m.offset for m in pulled.messages] == list(range(5, 2795))
    assert [m.body for m in pulled.messages] == [str(i % 700).encode() for i in range(5, 2795)]


def test_pull_returns_32_by_itself(store: Store) -> None:
    store.put_batch(batch("t", 40))
    assert len(store.pull("t", 0, 0).messages) == 32


@pytest.mark.parametrize("limit", [0, -1, (1 << 20) + 1])
def test_a_limit_out_of_range_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(CallerError):
        store.pull("t", 0, 0, limit)


@pytest.mark.parametrize("tags", [None, "a"])
def test_pull_stops_before_max_bytes_but_returns_one_message_at_least(
    store: Store, tags: str | None
) -> None:
    store.put_batch(batch("t", 10, tag="a"))
    size = store.get("t", 0, 0).size
    for max_bytes, count in (
        (1, 1),
        (size - 1, 1),
        (size, 1),
        (2 * size - 1, 1),
        (2 * size, 2),
        (9 * size + 1, 9),
        (1 << 40, 10),
    ):
        pulled = store.pull("t", 0, 0, max_bytes=max_bytes, filter=tags)
        assert len(pulled.messages) == count == pulled.next_offset
    for wrong in (0, -1):
        with pytest.raises(CallerError):
            store.pull("t", 0, 0, max_bytes=wrong)


def put_tagged(store: Store, *tags: str | None) -> None:
    store.put_batch([Message("t", b"", queue=0, tag=tag) for tag in tags])


@pytest.mark.parametrize(
    ("expression", "offsets"),
    [
        ("a", [0, 3]),
        ("a || b", [0, 1, 3]),
        ("b||a", [0, 1, 3]),
        (" a ||  a", [0, 3]),
        ("*", [0, 1, 2, 3, 4]),
        ("*  ", [0, 1, 2, 3, 4]),
        (None, [0, 1, 2, 3, 4]),
        ("Siblings || Teheran", [4]),
    ],
)
def test_a_filter_lets_the_tags_it_names_through(
    store: Store, expression: str | None, offsets: list[int]
) -> None:
    put_tagged(store, "a", "b", None, "a", "Teheran")
    pulled = store.pull("t", 0, 0, filter=expression)
    assert [m.offset for m in pulled.messages] == offsets
    assert (pulled.next_offset, pulled.status) == (5, PullStatus.FOUND)


def test_tags_of_one_hash_are_told_apart(store: Store) -> None:
    """ "Aa" and "BB" have the same Java hash."""
    put_tagged(store, "Aa", "BB", "Aa")
    assert [m.offset for m in store.pull("t", 0, 0, filter="BB").messages] == [1]


def test_a_filtered_pull_that_finds_nothing_says_how_far_it_looked(store: Store) -> None:
    put_tagged(store, *["a"] * 20)
    pulled = store.pull("t", 0, 3, filter="b")
    assert (pulled.status, pulled.messages) == (PullStatus.NO_MATCHED_MESSAGE, [])
    assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (20, 0, 20)


def test_a_filtered_pull_goes_on_behind_the_last_it_returned(store: Store) -> None:
    put_tagged(store, *["a", "b"] * 10)
    pulled = store.pull("t", 0, 0, 3, filter="b")
    assert [m.offset for m in pulled.messages] == [1, 3, 5]
    assert pulled.next_offset == 6


def test_a_filtered_pull_ends_after_800_messages_and_the_rest_follows(store: Store) -> None:
    put_tagged(store, *["a"] * 1000, "b")
    pulled = store.pull("t", 0, 0, filter="b")
    assert pulled.status == PullStatus.NO_MATCHED_MESSAGE
    assert 800 <= pulled.next_offset < 832 + 1
    rest = store.pull("t", 0, pulled.next_offset, filter="b")
    assert [m.offset for m in rest.messages] == [1000]


@pytest.mark.parametrize("expression", ["", "  ", "a ||", "|| a", "a || || b", 5, ["a"], b"a"])
def test_a_filter_that_is_none_is_refused(store: Store, expression: Any) -> None:
    with pytest.raises(CallerError):
        store.pull("t", 0, 0, filter=expression)


# --- by position and id ---


def test_read_at_returns_the_record_that_begins_there(store: Store) -> None:
    results = store.put_batch(batch("t", 9))
    for result in results:
        found = store.read_at(result.position)
        assert (found.offset, found.message_id) == (result.offset, result.message_id)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_no_record_begins_in_the_middle_of_one(opens: Opens, mode: Any, flushed: bool) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, write_mode=mode, stage_interval=60.0))
    store.create_topic("t")
    store.put_batch(batch("t", 3))
    if flushed:
        store.flush()
    size = store.get("t", 0, 0).size
    for position in range(1, store.stats().end_position):
        if position % size:
            with pytest.raises(MessageNotFound):
                store.read_at(position)


def test_no_message_begins_at_a_blank_record_or_inside_it(store: Store) -> None:
    store.put_batch(batch("t", 3))
    store.seal()
    store.put("t", b"", queue=0)
    (blank,) = blanks(store)
    for position in (
        blank.position,
        blank.position + 1,
        blank.position + 8,
        SEGMENT - 8,
        SEGMENT - 7,
        SEGMENT - 1,
    ):
        with pytest.raises(MessageNotFound):
            store.read_at(position)
    assert store.read_at(SEGMENT).offset == 3


@pytest.mark.parametrize("position", [-1, -(1 << 70), 1 << 62, 1 << 70])
def test_no_message_is_outside_the_log(store: Store, position: int) -> None:
    store.put("t", b"", queue=0)
    for outside in (position, store.stats().end_position, store.stats().end_position + 1):
        with pytest.raises(MessageNotFound):
            store.read_at(outside)


def test_a_message_is_found_by_either_of_its_ids(store: Store) -> None:
    store.put_batch(batch("t", 5))
    store.checkpoint()
    store.put_batch(batch("t", 5))
    for offset in range(10):
        message = store.get("t", 0, offset)
        for text in (message.message_id, message.position_id, message.position_id.lower()):
            assert store.find(text) == message


def test_an_id_that_is_not_there_or_foreign_is_not_found(store: Store) -> None:
    store.put_batch(batch("t", 3))
    message = store.get("t", 0, 1)
    other_host = "0A000001" + message.position_id[8:]
    inside = message.position_id[:-16] + f"{message.position + 1:016X}"
    behind = message.position_id[:-16] + f"{1 << 40:016X}"
    for text in (
        other_host,
        inside,
        behind,
        "x",
        "0" * 32,
        "F" * 32,
        "0" * 56,
        "ü",
        "\ud800",
        message.message_id[:-1],
        message.message_id + "0",
    ):
        with pytest.raises(MessageNotFound):
            store.find(text)


def test_of_two_messages_with_one_id_the_newer_is_found(store: Store) -> None:
    store.put("t", b"old", queue=0, message_id="same")
    store.checkpoint()
    store.put("t", b"new", queue=1, message_id="same")
    assert store.find("same").body == b"new"
    store.seal()
    assert store.find("same").body == b"new"
    assert [m.body for m in store.query("t", "same")] == [b"new", b"old"]


def test_bounds_are_the_first_held_offset_and_the_next(store: Store) -> None:
    assert store.bounds("t", 0) == (0, 0)
    store.put_batch(batch("t", 3))
    bounds = store.bounds("t", 0)
    assert (bounds.min_offset, bounds.next_offset) == (0, 3)


def test_a_changed_body_is_refused_by_every_read_but_without_the_check(opens: Opens) -> None:
    store = opens()
    store.create_topic("t")
    store.put("t", b"right", queue=0)
    store.close()
    path = store.path / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes().replace(b"right", b"wrong"))
    from kvstore import RecordDamaged

    again = opens()
    for call in (
        lambda: again.get("t", 0, 0),
        lambda: again.pull("t", 0, 0),
        lambda: again.read_at(0),
    ):
        with pytest.raises(RecordDamaged):
            call()
    again.close()
    unchecked = opens(StoreConfig(segment_size=SEGMENT, check_crc=False))
    assert unchecked.get("t", 0, 0).body == b"wrong"


def test_messages_are_unequal_just_when_they_are_not_equal(opens: Opens) -> None:
    store = opens()
    store.create_topic("a", queues=1)
    for body in (b"x", b"y"):
        store.put("a", body)
    one, again, other = (store.get("a", 0, offset) for offset in (0, 0, 1))
    assert one == again
    assert [one != again, one != other] == [False, True]


@pytest.mark.parametrize("read", ["pull", "get"])
def test_a_read_goes_on_where_another_thread_has_read_the_index_a_moment_before(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """It found the run missing in memory, and the other put it there before it came to do so."""
    with opens() as store:
        store.create_topic("t", queues=1)
        for count in (32, 28):
            store.put_batch([Message("t", b"x", queue=0) for _ in range(count)])
            store.checkpoint()
    again = opens()
    step = inside.decoding_of_runs(again)
    decode = step.now

    def decode_twice(*args: Any) -> bool:
        decode(*args)
        found: bool = decode(*args)
        return found

    step.replace(decode_twice, monkeypatch)
    if read == "pull":
        assert len(again.pull("t", 0, 0, limit=60).messages) == 60
    else:
        assert again.get("t", 0, 40).offset == 40


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_pull_goes_on_from_the_file_into_the_write_buffer(
    tmp_path: Path, is_reopened: bool
) -> None:
    config = settings(write_mode="staged", clock=VirtualClock())
    store = kvstore.open(tmp_path / "s", config)
    store.create_topic("t", queues=1)
    store.put_batch([Message("t", b"%d" % n) for n in range(3)])
    store.flush()
    if is_reopened:
        store.close()
        store = kvstore.open(tmp_path / "s", config)
    store.put_batch([Message("t", b"%d" % n) for n in range(3, 6)])
    with store:
        for _ in range(2):
            found = store.pull("t", 0, 0, 10)
            assert [m.body for m in found.messages] == [b"%d" % n for n in range(6)]
            columns = store.pull_columns("t", 0, 0, 10)
            assert columns.next_offset == 6
