"""Known ids finds the positions that a dictionary finds; rows leave a batch without a trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.dedup.known_ids import KnownIds, drop_rows
from kvstore.core.put_values import Message
from kvstore.core.queue_offsets import QueueOffsets
from kvstore.core.tail import Tail
from tests.core.test_encoding import BORN, IDS, WINDOW, WITH_IDS, encoder
from tests.support.tails import keys_of

TOPICS = ("t", "unique")
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(TOPICS), st.none() | IDS), min_size=1, max_size=90),
        st.sampled_from([0, 1, WINDOW // 2, WINDOW, WINDOW + 1]),
    ),
    max_size=12,
)


@given(BATCHES, st.sampled_from([1, 4, 10_000]), st.sampled_from([0, BORN - WINDOW + 5]))
def test_every_id_from_since_on_is_found_at_its_last_position(
    batches: list[tuple[list[tuple[str, str | None]], int]], most: int, since: int
) -> None:
    known, tail, offsets = KnownIds(since, 7, most), Tail(0), QueueOffsets(lambda queue: 0)
    puts: dict[tuple[str, str], tuple[int, int]] = {}
    now, position = BORN, 1000
    for given_, passed in batches:
        now += passed
        messages = [Message(topic, b"", dedup_id=one) for topic, one in given_]
        batch = encoder().prepare(messages, now)
        known.fetch(batch)
        found = {row: rest for row, *rest in known.find(batch, now, position)}
        seen: dict[tuple[str, str], int] = {}
        for row, (topic, one) in enumerate(given_):
            if one is None:
                assert row not in found
                continue
            key = topic, one
            stored_at, at = puts.get(key, (-1, -1))
            if key in seen:
                assert found[row] == [seen[key], -1, topic, one]
            elif stored_at >= known.since or at >= known.first_position > 7:
                assert found[row] == [-1, at, topic, one]
            elif row in found:
                assert found[row] in ([-1, -1, topic, one], [-1, at, topic, one])
            else:
                assert now - WINDOW >= known.since
            seen.setdefault(key, row)
        position = _placed(tail, offsets, batch, position, now)
        known.add(batch)
        for row, (topic, one) in enumerate(given_):
            if one is not None:
                puts[topic, one] = now, batch.position(row)
        assert len(known) <= len(puts) + 90


def _placed(tail: Tail, offsets: QueueOffsets, batch: object, position: int, now: int) -> int:
    [(_, data)] = tail.add(batch, offsets, position, 1 << 60, now)  # type: ignore[arg-type]
    return position + len(data)


def test_ids_go_two_windows_after_they_were_put() -> None:
    known, tail, offsets = KnownIds(0, 0, 1000), Tail(0), QueueOffsets(lambda queue: 0)
    position, now = 0, BORN
    for n in range(50):
        now = BORN + n * WINDOW // 10
        batch = encoder().prepare([Message("t", b"", dedup_id=str(n))], now)
        known.fetch(batch)
        assert known.find(batch, now, position) == []
        position = _placed(tail, offsets, batch, position, now)
        known.add(batch)
        assert len(known) <= 2 * 11 + 1
    assert now - WINDOW >= known.since > now - 2 * WINDOW - WINDOW // 10


@given(st.lists(WITH_IDS, min_size=1, max_size=6), st.sets(st.integers(0, 7)))
def test_a_batch_without_some_rows_is_the_batch_of_the_others(
    messages: list[Message], rows: set[int]
) -> None:
    messages = [
        m.__replace__(message_id=f"id-{n}", queue=0, born_at=BORN) for n, m in enumerate(messages)
    ]
    batch = encoder().prepare(messages, BORN)
    drop_rows(batch, rows)
    left = messages
    if any(m.dedup_id is not None for m in messages):
        left = [m for n, m in enumerate(messages) if n not in rows]
    other = encoder().prepare(left, BORN)
    tails = Tail(0), Tail(0)
    pieces = [
        tail.add(one, QueueOffsets(lambda queue: 0), 0, 1 << 60, BORN)
        for tail, one in zip(tails, (batch, other), strict=True)
    ]
    assert pieces[0] == pieces[1]
    assert (len(batch), batch.deduped) == (len(other), other.deduped)
    assert batch.queue_keys == other.queue_keys
    assert keys_of(tails[0]) == keys_of(tails[1])
    assert tails[0].entry_columns().tolist() == tails[1].entry_columns().tolist()


def test_a_batch_that_has_places_keeps_its_rows() -> None:
    batch = encoder().prepare([Message("t", b"", dedup_id="a"), Message("t", b"")], BORN)
    Tail(0).add(batch, QueueOffsets(lambda queue: 0), 0, 1 << 60, BORN)
    with pytest.raises(ValueError, match="has places already"):
        drop_rows(batch, [0])
    assert len(batch) == 2
