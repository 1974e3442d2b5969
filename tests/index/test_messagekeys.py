"""The parts of a segment's keys, and what repacking and retiring leave of an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.index.families import Families
from kvstore.index.keyblocks import sort_pairs
from kvstore.index.keys import (
    MESSAGE_KEYS,
    NOWHERE,
    PART_SEALED,
    PLACES,
    RUNS,
    place_key,
    place_value,
    read_key_block_key,
    read_place,
    run_key,
)
from kvstore.index.messagekeys import MessageKeys
from kvstore.index.repack import repack
from kvstore.index.retire import retire
from kvstore.index.runs import Columns, pack_many, unpack

SEGMENT = 1 << 20


@pytest.fixture
def families(tmp_path: Path) -> Iterator[Families]:
    opened = Families(tmp_path / "index", read_only=False, create=True)
    yield opened
    opened.close()


def add(families: Families, keys: MessageKeys, segment: int, pairs: list[tuple[int, int]]) -> None:
    hashes, positions = (np.array(c, dtype=np.int64) for c in zip(*pairs, strict=True))
    batch = families.batch()
    parts = keys.add(batch, segment, *sort_pairs(hashes, positions))
    families.write(batch)
    keys.written(segment, parts)


def parts_in(families: Families, segment: int) -> set[int]:
    found = [read_key_block_key(key) for key, _ in families.rows(MESSAGE_KEYS, b"")]
    return {part for s, part, _ in found if s == segment}


def test_twenty_checkpoints_leave_a_handful_of_parts_and_every_key(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    model: dict[int, list[int]] = {}
    for i in range(20):
        pairs = [((i * j * 7919) % 1000 << 20, 1000 * i + j) for j in range(100)]
        for h, p in pairs:
            model.setdefault(h, []).append(3 * SEGMENT + p)
        add(families, keys, 3, pairs)
        assert set(keys.parts(3)) == parts_in(families, 3)
        assert len(parts_in(families, 3)) <= 3 * (1 + i.bit_length() // 2)
    for looked in (keys, MessageKeys(families, SEGMENT)):
        for h, positions in model.items():
            assert looked.find(3, h, h) == sorted(positions)
        assert looked.find(3, 0, 1 << 40) == sorted(p for found in model.values() for p in found)
        assert (
            looked.find(3, 1, 2) == looked.find(2, 0, 1 << 40) == looked.find(4, 0, 1 << 40) == []
        )


def test_sealing_makes_one_part_of_all(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    for segment in (0, 1, 2):
        for i in range(7):
            add(families, keys, segment, [(5 << 30, i), (i << 20, 100 + i)])
    before = keys.pairs(1)
    batch = families.batch()
    parts = keys.seal(batch, 1)
    families.write(batch)
    keys.written(1, parts)
    assert parts_in(families, 1) == {PART_SEALED} == set(keys.parts(1))
    assert keys.find(1, 5 << 30, 5 << 30) == [SEGMENT + i for i in range(7)]
    assert [c.tolist() for c in keys.pairs(1)] == [c.tolist() for c in before]
    for segment in (0, 2):
        assert len(keys.find(segment, 0, 1 << 40)) == 14
    again = families.batch()
    assert keys.seal(again, 1) == (PART_SEALED,)
    assert len(again) == 0


def test_a_range_that_begins_below_a_parts_first_block_reaches_into_it(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    add(families, keys, 0, [(1000 + i, i) for i in range(2000)])
    assert keys.find(0, 0, 999) == []
    assert keys.find(0, 0, 1000) == [0]
    assert keys.find(0, 1255, 1257) == [255, 256, 257]
    assert keys.find(0, 2999, 1 << 40) == [1999]
    assert keys.find(0, 3000, 1 << 40) == []


# --- repack and retire ---


def put_runs(
    families: Families, segment: int, topic: int, queue: int, counts: list[int], first: int = 0
) -> None:
    """Runs of a queue, one behind the other, with a place at the first."""
    batch = families.batch()
    at = first
    for count in counts:
        n = np.arange(at - first, at - first + count, dtype=np.int64)
        columns = Columns(n * 135 + topic, n % 7 + 91, n * 31 - 5, n + 1_700_000_000_000)
        batch.put(RUNS, run_key(segment, topic, queue, at), pack_many(columns, np.array([0])).data)
        at += count
    batch.put(PLACES, place_key(topic, queue, first), place_value(segment, 1_700_000_000_000))
    families.write(batch)


def entries(families: Families) -> dict[tuple[bytes, int], list[tuple[int, ...]]]:
    """Every entry by segment, topic and queue, and offset."""
    found = {}
    for key, value in families.rows(RUNS, b""):
        rows = zip(*(c.tolist() for c in unpack(value)), strict=True)
        for offset, row in enumerate(rows, int.from_bytes(key[12:], "big")):
            assert (key[:12], offset) not in found
            found[key[:12], offset] = list(row)
    return found


def test_repacking_makes_one_run_of_a_queues_many_and_changes_nothing(families: Families) -> None:
    for segment in (4, 5, 6):
        for queue in range(3):
            put_runs(families, segment, 9, queue, [1, 5, 300, 2, 1, 1, 800, 40][queue:], first=7)
        put_runs(families, segment, 1 << 31, 65535, [1] * 30)
    before = entries(families)
    batch = families.batch()
    assert repack(families, batch, 5)
    families.write(batch)
    assert entries(families) == before
    counts = {
        s: len(list(families.rows(RUNS, s.to_bytes(4, "big"), (s + 1).to_bytes(4, "big"))))
        for s in (4, 5, 6)
    }
    assert counts == {4: 51, 5: 7, 6: 51}
    assert not repack(families, families.batch(), 5)


def test_repacking_keeps_a_gap_in_a_queues_offsets(families: Families) -> None:
    put_runs(families, 0, 1, 0, [3, 3, 3])
    put_runs(families, 0, 1, 0, [3, 3, 3], first=100)
    before = entries(families)
    batch = families.batch()
    assert repack(families, batch, 0)
    families.write(batch)
    assert entries(families) == before
    assert len(list(families.rows(RUNS, b""))) == 2


def test_an_empty_segment_is_not_repacked(families: Families) -> None:
    assert not repack(families, families.batch(), 0)


def test_retiring_takes_a_segment_and_leaves_the_next_offset_of_an_emptied_queue(
    families: Families,
) -> None:
    put_runs(families, 0, 1, 0, [3, 4])
    put_runs(families, 0, 1, 1, [5])
    put_runs(families, 0, 2, 0, [2])
    put_runs(families, 1, 1, 0, [6], first=7)
    keys = MessageKeys(families, SEGMENT)
    add(families, keys, 0, [(5, 5)])
    add(families, keys, 1, [(5, 6)])
    batch = families.batch()
    assert retire(families, batch, 0) == 3
    families.write(batch)
    places = [read_place(k, v) for k, v in families.rows(PLACES, b"")]
    assert [(t, q, p.first, p.segment) for t, q, p in places] == [
        (1, 0, 7, 1),
        (1, 1, 5, NOWHERE),
        (2, 0, 2, NOWHERE),
    ]
    assert {key[:4] for key, _ in families.rows(RUNS, b"")} == {b"\0\0\0\1"}
    assert MessageKeys(families, SEGMENT).find(1, 5, 5) == [SEGMENT + 6]
    assert MessageKeys(families, SEGMENT).find(0, 5, 5) == []
