"""Message keys: parts, generations and merging, against a model; repacking and retiring runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvstore
from kvstore import Message
from kvstore.core.hashing import may_hold
from kvstore.core.packed_pairs import known_positions, pack_block, sort_pairs
from kvstore.errors import FormatError
from kvstore.index import key_lookup, key_merge, key_parts
from kvstore.index.checkpoint import repack
from kvstore.index.families import Batch, Families
from kvstore.index.handover import retire
from kvstore.index.key_lookup import FAN_OUT, MessageKeys
from kvstore.index.key_parts import BLOCK, GENERATION, KnownBlocks, pairs_between
from kvstore.index.keys import (
    GONE,
    LOG_START,
    MESSAGE_KEYS,
    META,
    NOWHERE,
    PART_SEALED,
    PLACES,
    RUNS,
    U32,
    U64,
    location_key,
    location_value,
    read_location,
    read_part_prefix,
    run_key,
)
from kvstore.index.runs import RUN_MAX, Columns, pack_many, unpack
from tests.support import inside
from tests.support.costs import Costs

SEGMENT = 1 << 20
EVERY = (0, 1 << 31)
"""All segments."""
HASH_END = 1 << 40
Pair = tuple[int, int]
Model = dict[int, list[int]]
"""Hash -> log positions."""


def add(families: Families, keys: MessageKeys, segment: int, pairs: Sequence[Pair]) -> None:
    """A checkpoint's keys of one segment."""
    hashes, positions = (np.array(c, dtype=np.int64) for c in zip(*pairs, strict=True))
    batch = families.batch()
    parts, rows = keys.add(batch, keys.parts(), segment, *sort_pairs(hashes, positions))
    for names, values in rows:
        batch.put_many(MESSAGE_KEYS, names, values)
    keys.writing(parts)
    families.write(batch)
    keys.written(parts)


def merge_all(keys: MessageKeys, sealed: int) -> int:
    """Merge until nothing is due; returns how many steps that took."""
    steps = 0
    while keys.merge_due(sealed):
        keys.merge_next(sealed)
        steps += 1
    return steps


def let_go(families: Families, keys: MessageKeys, segment: int, there: Sequence[int]) -> None:
    """Retention takes a segment, the oldest."""
    batch = families.batch()
    parts = keys.drop_segments(batch, [segment], there)
    batch.put(META, LOG_START, U64.pack((segment + 1) * SEGMENT))
    families.write(batch)
    keys.written(parts)


def parts_in(families: Families) -> set[tuple[int, int, int]]:
    """Level, segment and number of every part that has a row."""
    return {read_part_prefix(key) for key, _ in families.rows(MESSAGE_KEYS, b"")}


def named(keys: MessageKeys) -> set[tuple[int, int, int]]:
    return {part[:3] for part in keys.parts()}


def fill(
    families: Families, keys: MessageKeys, segments: range, *, checkpoints: int = 1, count: int = 60
) -> Model:
    """Keys for some segments: hashes of their own, some that few share, and one that all have."""
    draw = random.Random(segments.start)
    model: Model = {}
    for segment in segments:
        for checkpoint in range(checkpoints):
            pairs = []
            for i in range(count):
                position = (checkpoint * count + i) * 50
                for hash_ in (draw.randrange(HASH_END), draw.randrange(20) << 30, 77 << 8 | 5):
                    pairs.append((hash_, position))
                    model.setdefault(hash_, []).append(segment * SEGMENT + position)
            add(families, keys, segment, pairs)
    return model


def assert_finds(keys: MessageKeys, model: Model) -> None:
    """Every hash gives its positions, newest first, alone and in a range."""
    for hash_, positions in model.items():
        assert list(keys.find(hash_, hash_, *EVERY)) == sorted(positions, reverse=True)
    every = sorted({p for positions in model.values() for p in positions}, reverse=True)
    assert list(keys.find(0, HASH_END - 1, *EVERY)) == every
    assert list(keys.find(77 << 8, 77 << 8 | 255, *EVERY)) == sorted(
        model.get(77 << 8 | 5, []), reverse=True
    )
    assert list(keys.find(3, 3, *EVERY)) == []


# --- parts of a segment ---


def test_pairs_from_any_hash_on_have_those_that_begin_in_the_block_before(
    families: Families,
) -> None:
    keys = MessageKeys(families, SEGMENT)
    pairs = [(hash_, hash_ * 100_000 + n * 50) for hash_ in range(1, 5) for n in range(700)]
    add(families, keys, 3, pairs)
    for low in range(1, 6):
        found = pairs_between(
            families, families.iter(MESSAGE_KEYS), keys.parts(), SEGMENT, low, HASH_END, 1 << 30
        )
        assert found is not None
        wanted = [(hash_, 3 * SEGMENT + at) for hash_, at in pairs if hash_ >= low]
        assert list(zip(*(column.tolist() for column in found), strict=True)) == wanted


def test_twenty_checkpoints_leave_a_handful_of_parts_and_every_key(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    model: Model = {}
    for i in range(20):
        pairs = [((i * j * 7919) % 1000 << 20, 1000 * i + j) for j in range(100)]
        for h, p in pairs:
            model.setdefault(h, []).append(3 * SEGMENT + p)
        add(families, keys, 3, pairs)
        assert named(keys) == parts_in(families)
        assert len(named(keys)) <= 3 * (1 + i.bit_length() // 2)
    for looked in (keys, MessageKeys(families, SEGMENT)):
        assert_finds(looked, model)
        assert list(looked.find(1 << 20, 1 << 20, 0, 2)) == []
        assert list(looked.find(1 << 20, 1 << 20, 4, 9)) == []


def test_parts_that_are_too_large_for_a_checkpoint_are_merged_in_the_background(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lookup, "_AT_ONCE_MAX", 10)
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(1), checkpoints=9)
    assert len(keys.parts()) == 9
    merge_all(keys, sealed=0)
    assert {number >> 12 for _, _, number in named(keys)} == {0, 1} or len(keys.parts()) <= 3
    assert_finds(keys, model)
    assert_finds(MessageKeys(families, SEGMENT), model)


def test_a_checkpoint_does_not_read_parts_that_are_too_large_to_be_merged_in_it(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read them up to the limit, and let them be."""
    monkeypatch.setattr(key_lookup, "_AT_ONCE_MAX", 1000)
    keys = MessageKeys(families, SEGMENT)
    fill(families, keys, range(1), checkpoints=3, count=100)
    costs = Costs(monkeypatch)
    with costs.counting() as counts:
        add(families, keys, 0, [(n << 20, n) for n in range(200)])
    assert len(keys.parts()) == 4
    assert counts.total() == 0


def test_a_merge_reads_little_beside_what_it_merges_however_many_parts_that_are(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge went through all parts for each piece of the new one: a third of this was useless."""
    each, draw = 1 << 14, np.random.default_rng(1)
    monkeypatch.setattr(key_lookup, "_AT_ONCE_MAX", 0)
    keys = MessageKeys(families, SEGMENT)
    for _ in range(16):
        hashes = np.sort(draw.integers(0, HASH_END, each))
        add(families, keys, 0, list(zip(hashes.tolist(), range(each), strict=True)))
    blocks = 16 * each // BLOCK
    costs = Costs(monkeypatch)
    with costs.counting() as counts:
        merge_all(keys, sealed=1)
    assert [part.pairs for part in keys.parts()] == [16 * each]
    assert blocks <= counts.total() < 1.2 * blocks


def test_a_sealed_segment_has_one_part(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(3), checkpoints=3)
    before = [keys.pairs(1), keys.pairs(2)]
    merge_all(keys, sealed=2)
    assert {(0, 0, PART_SEALED), (0, 1, PART_SEALED)} < named(keys) == parts_in(families)
    assert sum(part.covers(2) for part in keys.parts()) == 3
    assert_finds(keys, model)
    for number, (hashes, positions) in enumerate(before, 1):
        assert [c.tolist() for c in keys.pairs(number)] == [hashes.tolist(), positions.tolist()]
    assert not keys.merge_due(2)


# --- generations ---


def test_generations_merge_and_a_lookup_asks_a_logarithm_of_parts(families: Families) -> None:
    """Newest first across levels, and after a restart the same."""
    keys = MessageKeys(families, SEGMENT)
    model: Model = {}
    last = 2 * GENERATION**2 + 2 * GENERATION + 3
    for segment in range(last):
        for hash_, positions in fill(families, keys, range(segment, segment + 1), count=5).items():
            model.setdefault(hash_, []).extend(positions)
        merge_all(keys, sealed=segment)
        assert len(keys.parts()) <= 1 + GENERATION * 3
    levels = [part.level for part in keys.parts()]
    assert levels == [2, 2, 1, 1, 0, 0, 0]
    assert named(keys) == parts_in(families)
    for looked in (keys, MessageKeys(families, SEGMENT)):
        assert_finds(looked, model)


def test_a_look_into_some_segments_leaves_the_generations_of_others_alone(
    families: Families,
) -> None:
    keys = MessageKeys(families, SEGMENT)
    fill(families, keys, range(2 * GENERATION))
    merge_all(keys, sealed=2 * GENERATION)
    hash_ = 77 << 8 | 5
    newer = {p // SEGMENT for p in keys.find(hash_, hash_, GENERATION, 99)}
    older = {p // SEGMENT for p in keys.find(hash_, hash_, 0, GENERATION - 1)}
    assert newer == set(range(GENERATION, 2 * GENERATION))
    assert older == set(range(GENERATION))


def test_a_look_into_one_segment_of_a_generation_passes_over_the_blocks_of_others(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that very many messages have, asked for in a stretch of the log: the blocks of newer
    segments are bisected, those of older ones are not read.
    """
    costs = Costs(monkeypatch)
    for hash_, blocks in ((7 << 8, 1), (8 << 8, 10), (9 << 8, 40)):
        keys = MessageKeys(families, SEGMENT)
        pairs = [(hash_, n) for n in range(blocks * BLOCK - 7)]
        first = (hash_ >> 8) * GENERATION
        for segment in range(first, first + GENERATION):
            add(families, keys, segment, [(1, 5), *pairs])
            merge_all(keys, sealed=segment + 1)
        assert [p.level for p in keys.parts() if p.segment == first] == [1]
        for segment in range(first, first + GENERATION):
            with costs.counting() as counts:
                found = list(keys.find(hash_, hash_, segment, segment))
            assert found == [segment * SEGMENT + n for _, n in reversed(pairs)]
            bisecting = (GENERATION * blocks + 1).bit_length()
            assert counts["seek"] <= blocks + bisecting + 4, (blocks, segment)


def test_a_generation_goes_with_the_last_of_its_segments(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    fill(families, keys, range(GENERATION + 1))
    merge_all(keys, sealed=GENERATION)
    for segment in range(GENERATION - 1):
        let_go(families, keys, segment, range(segment, GENERATION + 1))
        assert (1, 0, PART_SEALED) in named(keys)
    let_go(families, keys, GENERATION - 1, range(GENERATION - 1, GENERATION + 1))
    assert {level for level, _, _ in parts_in(families)} == {0}
    assert named(keys) == parts_in(families)


def test_a_merge_leaves_what_is_gone_behind_and_nothing_else(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(GENERATION))
    batch = families.batch()
    batch.put(META, LOG_START, U64.pack(3 * SEGMENT))
    batch.put(META, GONE, U32.pack(5))
    families.write(batch)
    merge_all(keys, sealed=GENERATION)
    every = {p for positions in model.values() for p in positions}
    left = {p for p in every if p >= 3 * SEGMENT and p // SEGMENT != 5}
    assert set(keys.find(0, HASH_END - 1, *EVERY)) == left
    assert keys.parts()[0].pairs == sum(
        position in left for positions in model.values() for position in positions
    )


def test_a_key_is_found_whenever_a_merge_comes_to_its_end_beside_the_look(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a look's moment, and between its batch being announced and written."""
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(GENERATION + 1))
    hash_ = 77 << 8 | 5
    wanted = sorted(model[hash_], reverse=True)
    iterate, write = families.iter, families.write
    merged: list[int] = []

    def merged_first(name: str, options: Any = None) -> Any:
        if not merged:
            merged.append(1)
            merge_all(keys, sealed=GENERATION)
        return iterate(name, options)

    def looked_at(batch: Batch, *, sync: bool = False) -> None:
        assert list(keys.find(hash_, hash_, *EVERY)) == wanted
        write(batch, sync=sync)
        assert list(keys.find(hash_, hash_, *EVERY)) == wanted

    monkeypatch.setattr(families, "write", looked_at)
    monkeypatch.setattr(families, "iter", merged_first)
    assert list(keys.find(hash_, hash_, *EVERY)) == wanted
    assert merged


@pytest.mark.parametrize("is_before", [True, False])
def test_all_pairs_of_a_segment_are_those_of_one_moment_whatever_is_merged_beside_it(
    families: Families, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """Before the moment or behind it, and between a merge being written and being noted."""
    keys = MessageKeys(families, SEGMENT)
    fill(families, keys, range(GENERATION + 1), checkpoints=2)
    wanted = [c.tolist() for c in keys.pairs(1)]
    iterate, write = families.iter, families.write
    merged: list[int] = []

    def merge_once() -> None:
        if not merged:
            merged.append(1)
            merge_all(keys, sealed=GENERATION)

    def merged_beside(name: str, options: Any = None) -> Any:
        if is_before:
            merge_once()
        it = iterate(name, options)
        merge_once()
        return it

    def looked_at(batch: Batch, *, sync: bool = False) -> None:
        assert [c.tolist() for c in keys.pairs(1)] == wanted
        write(batch, sync=sync)
        assert [c.tolist() for c in keys.pairs(1)] == wanted

    monkeypatch.setattr(families, "write", looked_at)
    monkeypatch.setattr(families, "iter", merged_beside)
    assert [c.tolist() for c in keys.pairs(1)] == wanted
    assert merged
    assert sum(part.covers(1) for part in keys.parts()) == 1


def test_a_checkpoint_that_merges_parts_hides_none_of_their_keys_while_it_is_written(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = MessageKeys(families, SEGMENT)
    write = families.write
    there: list[int] = []

    def looked_at(batch: Batch, *, sync: bool = False) -> None:
        assert list(keys.find(1, 1, *EVERY)) == there
        write(batch, sync=sync)
        there.insert(0, len(there))
        assert list(keys.find(1, 1, *EVERY)) == there

    monkeypatch.setattr(families, "write", looked_at)
    for position in range(FAN_OUT):
        add(families, keys, 0, [(1, position)])
    assert len(keys.parts()) == 1


def test_a_merge_of_segments_that_are_all_gone_leaves_nothing(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    fill(families, keys, range(2))
    batch = families.batch()
    batch.put(META, LOG_START, U64.pack(GENERATION * SEGMENT))
    families.write(batch)
    merge_all(keys, sealed=GENERATION)
    assert parts_in(families) == named(keys) == set()


# --- merging, step by step ---


@pytest.fixture(params=[1, 3])
def small_steps(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """All that bounds a step at its smallest: pieces of one block, one or few, single hashes."""
    monkeypatch.setattr("kvstore.index.key_parts.PIECE_BLOCKS", 1)
    monkeypatch.setattr(key_lookup, "PIECE_BLOCKS", 1)
    monkeypatch.setattr(key_merge, "_PIECES_AT_ONCE", request.param)
    monkeypatch.setattr(key_merge, "_AT_ONCE_MAX", 300)
    monkeypatch.setattr("kvstore.index.key_parts._READ_AT_ONCE", 1)


@pytest.mark.usefixtures("small_steps")
def test_every_key_is_found_between_any_two_steps(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(GENERATION), checkpoints=2, count=40)
    steps = 0
    while keys.merge_due(GENERATION):
        keys.merge_next(GENERATION)
        steps += 1
        if steps % 7 == 0:
            assert_finds(keys, model)
    assert steps > 20
    assert named(keys) == parts_in(families) == {(1, 0, PART_SEALED)}
    assert_finds(keys, model)
    assert keys.pairs(3)[0].size == 3 * 2 * 40


@pytest.mark.usefixtures("small_steps")
def test_a_merge_that_is_cut_short_at_any_write_goes_on(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write fails once, by turns before and behind the disk, and the process begins anew."""
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(GENERATION), count=40)
    write, fails = families.write, random.Random(3)

    def failing(batch: Batch, *, sync: bool = False) -> None:
        if fails.random() < 0.6:
            if fails.random() < 0.5:
                write(batch, sync=sync)
            raise OSError("cut short")
        write(batch, sync=sync)

    monkeypatch.setattr(families, "write", failing)
    cuts = 0
    while keys.merge_due(GENERATION):
        try:
            keys.merge_next(GENERATION)
        except OSError:
            cuts += 1
            if cuts % 2:
                keys = MessageKeys(families, SEGMENT)
            if cuts % 5 == 0:
                assert_finds(keys, model)
    assert cuts > 10
    assert named(keys) == parts_in(families) == {(1, 0, PART_SEALED)}
    assert_finds(keys, model)
    assert len(keys.pairs(0)[0]) == 3 * 40  # and its filter is that of its keys


@pytest.mark.usefixtures("small_steps")
def test_retention_beside_a_merge_leaves_every_other_key(families: Families) -> None:
    """Also when all that is being merged goes."""
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(GENERATION + 1), count=60)
    for segment in range(GENERATION):
        keys.merge_next(GENERATION)
        assert keys.is_merging
        let_go(families, keys, segment, range(segment, GENERATION + 1))
        left = {
            h: there
            for h, positions in model.items()
            if (there := [p for p in positions if p >= (segment + 1) * SEGMENT])
        }
        for hash_, positions in left.items():
            found = keys.find(hash_, hash_, *EVERY)
            assert [p for p in found if p >= (segment + 1) * SEGMENT] == sorted(
                positions, reverse=True
            )
    merge_all(keys, GENERATION)
    assert named(keys) == parts_in(families)
    assert {level for level, _, _ in named(keys)} == {0}


@pytest.mark.usefixtures("small_steps")
def test_a_hash_of_very_many_messages_is_read_from_its_newest_on(families: Families) -> None:
    """The first of thousands costs a few seeks, not a look at all of them."""
    keys = MessageKeys(families, SEGMENT)
    common = 9 << 8 | 1
    for segment in range(GENERATION):
        add(families, keys, segment, [(common, i) for i in range(3000)] + [(common + 1, 7)])
    merge_all(keys, GENERATION)
    assert len(keys.parts()) == 1
    found = iter(keys.find(common, common, *EVERY))
    newest = (GENERATION - 1) * SEGMENT + 2999
    assert [next(found) for _ in range(600)] == list(range(newest, newest - 600, -1))
    in_all_topics = list(keys.find(9 << 8, 9 << 8 | 255, *EVERY))
    assert len(in_all_topics) == len(set(in_all_topics)) == 3000 * GENERATION
    assert len(list(keys.find(common + 1, common + 1, *EVERY))) == GENERATION


def test_a_range_that_begins_below_a_parts_first_block_reaches_into_it(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    add(families, keys, 0, [(1000 + i, i) for i in range(2000)])
    assert list(keys.find(0, 999, *EVERY)) == []
    assert list(keys.find(0, 1000, *EVERY)) == [0]
    assert list(keys.find(1255, 1257, *EVERY)) == [257, 256, 255]
    assert list(keys.find(2999, HASH_END - 1, *EVERY)) == [1999]
    assert list(keys.find(3000, HASH_END - 1, *EVERY)) == []


def test_pieces_of_filters_are_kept_in_bounded_memory(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_lookup, "FILTERS_CACHED_BYTES_MAX", 1)
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(5))
    assert_finds(keys, model)
    assert inside.key_caches(keys)[1:] == (0, 0)
    monkeypatch.setattr(key_lookup, "FILTERS_CACHED_BYTES_MAX", 2000)
    assert_finds(keys, model)
    assert 0 < inside.key_caches(keys).filter_bytes <= 2000


def test_each_hash_of_a_part_whose_filter_has_several_pieces_is_found(families: Families) -> None:
    keys = MessageKeys(families, 1 << 20)
    add(families, keys, 0, [(n << 25 | 5, n) for n in range(1 << 15)])
    (part,) = keys.parts()
    assert part.pieces > 1
    assert all(list(keys.find(n << 25 | 5, n << 25 | 5, *EVERY)) == [n] for n in range(1 << 15))


def test_a_hash_in_a_block_that_was_read_is_found_without_the_database(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = MessageKeys(families, SEGMENT)
    for segment in range(3):
        add(families, keys, segment, [(1000 + i // 2, i) for i in range(2000)])
    newest = [segment * SEGMENT + i for segment in (2, 1, 0) for i in (901, 900)]
    assert list(keys.find(1450, 1450, *EVERY)) == newest
    monkeypatch.setattr(families, "iter", lambda _: pytest.fail("the database is asked"))
    assert list(keys.find(1450, 1450, *EVERY)) == newest
    assert list(keys.find(1451, 1451, 1, 1)) == [SEGMENT + 903, SEGMENT + 902]


def test_a_look_up_asks_each_filter_once_also_where_memory_has_not_all_blocks(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = MessageKeys(families, SEGMENT)
    for segment in range(3):
        add(families, keys, segment, [(n << 20, n) for n in range(2000)])
    assert len(list(keys.find(5 << 20, 5 << 20, *EVERY))) == 3  # from here on filters are in memory
    asked = list[object]()

    def noted(data: bytes, *given: int) -> bool:
        asked.append(data)
        return may_hold(data, *given)

    def known(parts: Any, filters: Any, blocks: Any, said: dict[int, bool], *given: int) -> Any:
        found = known_positions(parts, filters, blocks, said, *given)
        asked.extend(said)
        return found

    monkeypatch.setattr(key_lookup, "may_hold", noted)
    monkeypatch.setattr(key_lookup, "known_positions", known)
    assert len(list(keys.find(1900 << 20, 1900 << 20, *EVERY))) == 3
    assert len(asked) == 3


def test_blocks_that_were_read_are_kept_in_bounded_memory(
    families: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_parts, "BLOCKS_CACHED_BYTES_MAX", 1)
    keys = MessageKeys(families, SEGMENT)
    model = fill(families, keys, range(5))
    assert_finds(keys, model)
    assert inside.key_caches(keys).blocks == 0
    monkeypatch.setattr(key_parts, "BLOCKS_CACHED_BYTES_MAX", 5000)
    assert_finds(keys, model)
    assert 0 < inside.key_caches(keys).blocks <= 5000 // 150


def test_filters_and_blocks_leave_memory_when_rows_changed(families: Families) -> None:
    keys = MessageKeys(families, SEGMENT)
    assert_finds(keys, fill(families, keys, range(2)))
    assert 0 not in inside.key_caches(keys)
    keys.forget_rows()
    assert inside.key_caches(keys) == (0, 0, 0)


def test_a_block_that_was_read_before_blocks_changed_is_not_kept() -> None:
    blocks = KnownBlocks()
    value = pack_block(5, np.array([5, 6, 7]), np.array([1, 2, 3]))
    version = blocks.version
    blocks.forget()
    blocks.add(version, 1, 0, (5, value))
    assert not blocks.pieces
    blocks.add(blocks.version, 1, 0, (5, value))
    assert blocks.pieces == {(1, 0): [(5, value)]}


def test_memory_tells_of_hashes_between_the_first_and_the_last_of_a_block_alone() -> None:
    blocks = {(1, 0): [(5, pack_block(5, np.array([5, 6, 7]), np.array([1, 2, 3])))]}

    def known(hash_: int) -> list[int] | None:
        full, part = {(1, 0): b"\xff" * 64}, (1, 1000, 2000, 1)
        return known_positions([part], full, blocks, {}, hash_, 0, 2000, 1, 5)

    assert [known(hash_) for hash_ in (4, 5, 6, 7, 8)] == [None, None, [1002], None, None]


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
    batch.put(PLACES, location_key(topic, queue, first), location_value(segment, 1_700_000_000_000))
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


def test_runs_that_are_as_long_as_they_get_are_not_decoded_when_their_segment_is_sealed(
    families: Families,
) -> None:
    """All of a segment's blocks were decoded and packed anew, and the result thrown away."""
    for queue in range(4):
        put_runs(families, 3, 9, queue, [RUN_MAX, RUN_MAX, 400])
    batch = families.batch()
    for key, value in families.rows(RUNS, b""):
        batch.put(RUNS, key, value[:-1])  # who decodes one of them would say that it is damaged
    families.write(batch)
    assert not repack(families, families.batch(), 3)
    put_runs(families, 3, 9, 5, [1] * 40)
    with pytest.raises(FormatError):
        repack(families, families.batch(), 3)


def test_an_empty_segment_is_not_repacked(families: Families) -> None:
    assert not repack(families, families.batch(), 0)


def test_retiring_takes_a_segment_and_leaves_the_next_offset_of_an_emptied_queue(
    families: Families,
) -> None:
    put_runs(families, 0, 1, 0, [3, 4])
    put_runs(families, 0, 1, 1, [5])
    put_runs(families, 0, 2, 0, [2])
    put_runs(families, 1, 1, 0, [6], first=7)
    batch = families.batch()
    assert retire(families, batch, 0) == 3
    families.write(batch)
    places = [read_location(k, v) for k, v in families.rows(PLACES, b"")]
    assert [(t, q, p.first, p.segment) for t, q, p in places] == [
        (1, 0, 7, 1),
        (1, 1, 5, NOWHERE),
        (2, 0, 2, NOWHERE),
    ]
    assert {key[:4] for key, _ in families.rows(RUNS, b"")} == {b"\0\0\0\1"}


def test_parts_that_were_replaced_take_no_room_in_the_files_once_all_is_merged(
    tmp_path: Path,
) -> None:
    """They stayed until RocksDB had more files: 10 to 13 bytes a key in small stores."""
    with kvstore.open(tmp_path / "a", kvstore.StoreConfig(segment_size=1 << 20)) as store:
        inside.housekeeper(store).stop()
        store.create_topic("orders", queues=2)
        keys = 0
        while store.stats().end_position < 10 << 20:
            names = [(f"a-{keys + n}", f"b-{keys + n}") for n in range(0, 800, 2)]
            store.put_batch([Message("orders", b"x", keys=some, queue=0) for some in names])
            keys += 3 * len(names)
            store.checkpoint()
            inside.families(store).flush("message_keys")
        store.seal()
        store.checkpoint()
        index = inside.index(store)
        for due, work in (
            (index.seal_due, index.seal_next),
            (index.merge_due, index.merge_next),
            (index.compact_due, index.compact_next),
        ):
            while due():
                work()
                inside.families(store).flush("message_keys")
        assert {part.level for part in inside.keys(store).parts()} == {0, 1}
        found = store.stats().index_bytes["message_keys"]
        inside.families(store).compact("message_keys")
        assert found <= 1.02 * store.stats().index_bytes["message_keys"]
    assert found < 8 * keys
