"""Volumes are counted without reading bodies, and come to what a consumer counts."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import kvstore
from kvstore import ArchiveAccess, Message, StoreConfig, StoredMessage
from kvstore.errors import ArchiveDamaged, ArchiveMissing, KeyMissing
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import by_position
from tests.tiering.spark.report.conftest import Past
from tiering import KeyFile, Policy, Worker
from tiering.archive.layout import PART_HEAD
from tiering.spark.listing import Opener, listing
from tiering.spark.options import read_options
from tiering.spark.part_reader import PartReader
from tiering.spark.report.tables import DAY_MS, ArchivesReader, Tally, VolumeReader, count_archive
from tiering.spark.splits import plan_splits
from tiering.spark.wanted import QueryFilter

DAY = 86_400.0
NOON = 1_788_220_800_000
Row = tuple[str, str, int, int, int, float]


class Slow(NamedTuple):
    """A store whose few messages come day after day, so that a block is of many days."""

    folder: Path
    keys: Path
    messages: list[StoredMessage]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Slow:
    base = tmp_path_factory.mktemp("slow")
    clock, keys = VirtualClock(NOON), KeyFile(base / "keys.json")
    keys.make("secret")
    with kvstore.open(base / "store", StoreConfig(segment_size=1 << 20, clock=clock)) as store:
        for topic in ("open", "secret", "gone"):
            store.create_topic(topic, queues=2)
        for n in range(150):
            topic = ("open", "secret", "open", "gone", "open")[n % 5]
            store.put_batch([Message(topic, b"%d" % n * (1 + n % 60), queue=n % 2)])
            clock.advance(3600.0 * (1 + n % 3))
        store.seal()
        clock.advance(2 * DAY)
        policy = Policy(hot_for=DAY, warm="archive", clock_doubt=0.0)
        with Worker(store, policy, keys=keys) as worker:
            assert worker.run_once().failed == {}
        store.put_batch([Message("open", b"last")])
        store.delete_topic("gone")
    config = StoreConfig(archives=ArchiveAccess(keys=str(base / "keys.json")))
    with kvstore.open(base / "store", config, read_only=True) as store:
        found = list(by_position(store).values())
    return Slow(base / "store", base / "keys.json", found)


def counted(path: Path, **given: str) -> tuple[list[Row], int]:
    """The rows that tasks give, and how many tasks."""
    reader = VolumeReader(read_options({"path": str(path), **given}))
    splits = reader.partitions()
    return [row for split in splits for row in reader.count(split).rows()], len(splits)  # type: ignore[arg-type] # Spark's own type


class Totals(NamedTuple):
    """Messages by topic and day; bytes of records by topic."""

    days: Counter[tuple[str, int]]
    raw: Counter[str]


def totals(counts: Iterable[tuple[str, int, int, int]]) -> Totals:
    """The sums of topics, days, messages and bytes of records."""
    found = Totals(Counter(), Counter())
    for topic, day, messages, raw in counts:
        found.days[topic, day] += messages
        found.raw[topic] += raw
    return found


def of_rows(rows: Iterable[Row]) -> Totals:
    return totals((topic, day, n, raw) for topic, _, day, n, raw, _ in rows)


def of_messages(messages: Iterable[StoredMessage]) -> Totals:
    return totals((m.topic, m.stored_at // DAY_MS, 1, m.size) for m in messages)


def test_every_message_is_counted_once_on_its_day(past: Past) -> None:
    for split_bytes in ("5000", "100000000"):
        rows, parts = counted(past.folder, split_bytes=split_bytes)
        assert parts > 2 or split_bytes != "5000"
        assert {row[1] for row in rows} == {"hot", "warm", "cold"}
        assert of_rows(rows) == of_messages(past.messages)


def test_what_is_stored_adds_up_to_the_archives_and_the_records_of_the_log(past: Past) -> None:
    rows, _ = counted(past.folder)
    archives = list(ArchivesReader(read_options({"path": str(past.folder)})).rows())
    for tier in ("warm", "cold"):
        sizes = [row[7] for row in archives if row[2] == tier]
        assert sizes
        stored = sum(row[5] for row in rows if row[1] == tier)
        assert stored == pytest.approx(sum(size for size in sizes if isinstance(size, int)))
    hot = [row for row in rows if row[1] == "hot"]
    assert sum(row[5] for row in hot) == sum(row[4] for row in hot) > 0


def test_of_a_block_of_many_days_each_message_is_on_its_own(slow: Slow) -> None:
    rows, _ = counted(slow.folder, key_file=str(slow.keys))
    due = of_messages(slow.messages)
    assert len(due.days) > 12
    assert of_rows(rows) == due


def test_topics_that_were_deleted_are_not_counted(slow: Slow) -> None:
    rows, _ = counted(slow.folder)
    assert {row[0] for row in rows} == {"open", "secret"}
    alone, _ = counted(slow.folder / "archive")
    assert {row[0] for row in alone} == {"open", "secret", "gone"}


def test_what_no_key_opens_is_counted_as_if_it_had_come_evenly(slow: Slow) -> None:
    rows, _ = counted(slow.folder)
    found, due = of_rows(rows), of_messages(slow.messages)
    mine = {key: n for key, n in found.days.items() if key[0] == "secret"}
    exact = {key: n for key, n in due.days.items() if key[0] == "secret"}
    assert sum(mine.values()) == sum(exact.values())
    assert (min(mine), max(mine)) == (min(exact), max(exact))
    assert found.raw == due.raw


def test_without_its_key_a_topic_ends_a_query_or_is_left_out(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    """But a stream, which would never come back to it, ends all the same."""

    def topics(*, is_stream: bool = False, **given: str) -> set[str]:
        options = read_options({"path": str(slow.folder), "split_bytes": "500", **given})
        wanted = QueryFilter.of(options)
        splits = plan_splits(listing(options), wanted, options, Opener(options))
        reader = PartReader(options, wanted, ["topic", "keys"], is_stream=is_stream)
        return {
            topic
            for split in splits
            for batch in reader.batches(split)
            for topic in batch.column(0).to_pylist()
        }

    assert topics(key_file=str(slow.keys)) == {"open", "secret"}
    for given in ({}, {"damaged": "skip", "is_stream": True}):
        with pytest.raises(KeyMissing, match="'secret' is encrypted"):
            topics(**given)  # type: ignore[arg-type] # one of them is a flag
    caplog.clear()
    assert topics(damaged="skip") == {"open"}
    assert len(caplog.messages) == len(set(caplog.messages)) > 0


def test_bodies_are_not_read(slow: Slow, tmp_path: Path) -> None:
    copy = tmp_path / "archives"
    shutil.copytree(slow.folder / "archive", copy)
    whole, _ = counted(copy, key_file=str(slow.keys))
    options = read_options({"path": str(copy), "key_file": str(slow.keys)})
    for held in listing(options).archives:
        data = bytearray((copy / held.key).read_bytes())
        archive = Opener(options).archive(held)
        for block in range(archive.directory.blocks):
            at, (fixed, properties, bodies) = archive.directory.extent(block)
            # All of them but what says how long they are.
            begin = at + fixed + properties + PART_HEAD.size
            data[begin : at + fixed + properties + bodies] = bytes(bodies - PART_HEAD.size)
        (copy / held.key).write_bytes(data)
    assert counted(copy, key_file=str(slow.keys))[0] == whole


def test_of_blocks_of_one_day_nothing_is_read(past: Past) -> None:
    options = read_options({"path": str(past.folder), "hot": "false"})
    opener = Opener(options)
    for held in listing(options).archives:
        archive = opener.archive(held)
        rows = archive.rows()
        days = rows.least_stored_at // DAY_MS == rows.greatest_stored_at // DAY_MS
        assert days.any()
        before = opener.read
        count_archive(Tally(), archive, held.tier, np.flatnonzero(days))
        assert opener.read == before


def test_a_damaged_archive_ends_the_count_or_is_left_out(past: Past, tmp_path: Path) -> None:
    copy = tmp_path / "archives"
    shutil.copytree(past.folder / "archive", copy)
    whole = sum(row[3] for row in counted(copy)[0])
    first = min(copy.rglob("*.kvarc"))
    data = bytearray(first.read_bytes())
    data[-40] ^= 1
    first.write_bytes(data)
    with pytest.raises(ArchiveDamaged, match=first.name):
        counted(copy)
    assert 0 < sum(row[3] for row in counted(copy, damaged="skip")[0]) < whole


def test_an_archive_that_goes_while_it_is_counted_is_said_to_have_gone(
    past: Past, tmp_path: Path
) -> None:
    copy = tmp_path / "archives"
    shutil.copytree(past.folder / "archive", copy)
    reader = VolumeReader(read_options({"path": str(copy)}))
    splits = reader.partitions()
    for one in copy.rglob("*.kvarc"):
        one.unlink()
    with pytest.raises(ArchiveMissing, match="run it again"):
        reader.count(splits[0])  # type: ignore[arg-type] # Spark's own type


def test_archives_of_a_place_are_what_they_say_of_themselves(past: Past) -> None:
    of_store = ArchivesReader(read_options({"path": str(past.folder)})).rows()
    of_place = ArchivesReader(read_options({"path": str(past.cold)})).rows()
    cold = {row[1]: row for row in of_store if row[2] == "cold"}
    found = {row[1]: row for row in of_place}
    assert found.keys() == cold.keys()
    for key, row in found.items():
        # Place and tier are a bucket's own; when it was made only the store knows.
        assert (row[1], *row[3:17]) == (key, *cold[key][3:17])
