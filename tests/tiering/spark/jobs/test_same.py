"""Spark and the embedded worker make the same archives of a store, byte for byte."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import kvstore
from kvstore.errors import KeyMissing
from tests.cli.conftest import Kvmq, kvmq
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.tiering.spark.conftest import DAY, SEGMENT
from tests.tiering.spark.jobs import works
from tests.tiering.spark.jobs.conftest import Noting
from tests.tiering.spark.jobs.twins import POLICY, Side, both, config, plain, worked
from tiering import TieringStopped, TopicKey, Worker
from tiering.catalog.catalog import decode_rows
from tiering.executor.segment_encoder import SegmentJob
from tiering.spark.jobs.executor import SparkExecutor
from tiering.worker import archive_segment


def test_moving_segments_and_archives_through_all_tiers_gives_the_same(
    tmp_path: Path, made: tuple[Path, int], executor: Noting
) -> None:
    def work(worker: Worker, clock: VirtualClock) -> Any:
        first = worker.run_once()
        clock.advance(1.5 * DAY)
        brief = worker.run_once()
        clock.advance(8 * DAY)
        rest = worker.run_once()
        return first, brief, rest, [a.key for a in worker.archives()]

    one, _ = both(tmp_path, *made, executor, work)
    first, brief, rest, _ = one.told
    assert len(first.segments) >= 5
    assert len(brief.relocated) == len(rest.expired) >= 3
    assert len(rest.relocated) >= 5
    assert first.failed == brief.failed == rest.failed == {}
    # The topic that has half of the messages is in many tasks, and not in one.
    jobs = [job for job, *_ in executor.given if isinstance(job, SegmentJob)]
    assert len([job for job in jobs if "skewed" in job.topics]) == len(first.segments)


def test_tasks_that_die_in_the_middle_cost_nothing_and_leave_nothing(
    tmp_path: Path, made: tuple[Path, int], executor: SparkExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(worker: Worker, clock: VirtualClock) -> Any:
        return worker.run_once()

    folder, now = made
    one = worked(folder, tmp_path / "embedded", now, work, None)
    killing = works.encoded_at_the_second_try
    monkeypatch.setattr(archive_segment, "segment_task", killing)
    other = worked(folder, tmp_path / "spark", now, work, executor)
    assert one.told == other.told
    assert other.told.failed == {}
    assert one.objects == other.objects
    assert one.rows == other.rows


class Keys:
    """Each topic's key to write with, and all that there ever were."""

    def __init__(self, **writing: TopicKey) -> None:
        self.writing = writing
        self.all = {(topic, key.key_id): key for topic, key in writing.items()}

    def change(self, topic: str, key: TopicKey | None) -> None:
        """From now on the topic is encrypted with that key; None: with none."""
        self.writing.pop(topic, None)
        if key is not None:
            self.writing[topic] = key
            self.all[topic, key.key_id] = key

    def key_for_writing(self, topic: str) -> TopicKey | None:
        return self.writing.get(topic)

    def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
        if (topic, key_id) not in self.all:
            raise KeyMissing(f"no key {key_id}", topic)
        return self.all[topic, key_id]


def key(name: str) -> TopicKey:
    return TopicKey(name, (name.encode() * 32)[:32])


def encrypted(side: Side) -> set[tuple[str, bool]]:
    """The classes of archives, and whether something in them is encrypted."""
    return {(row.retention_class, row.is_encrypted) for row in side.rows if row.state == "live"}


def test_merging_compacting_and_erasing_give_the_same(
    tmp_path: Path, made: tuple[Path, int], executor: SparkExecutor
) -> None:
    def work(worker: Worker, clock: VirtualClock) -> Any:
        moved = worker.run_once()
        compacted = worker.compact("table")
        merged = worker.merge()
        erased = worker.erase(key="k3")
        again = worker.compact(), worker.merge()
        return moved, compacted, merged, erased, worker.verify(), again

    one, _ = both(tmp_path, *made, executor, work)
    moved, compacted, merged, erased, verified, again = one.told
    assert len(compacted.merged) == len(moved.segments)
    assert len(compacted.archives) == 1
    assert len(merged.merged) > len(merged.archives) >= 2
    assert (erased.is_proven, erased.found) == (True, 0)
    assert len(erased.rewritten) >= 3
    assert (verified.ok, verified.archives) == (True, len(erased.archives))
    assert [(r.merged, r.failed) for r in again] == [([], {})] * 2
    assert not any("k3" in m.keys for m in one.held.values())


def test_archives_come_under_the_keys_of_today_and_no_others_are_touched(
    tmp_path: Path, made: tuple[Path, int], executor: SparkExecutor
) -> None:
    def work(worker: Worker, clock: VirtualClock) -> Any:
        keys = inside.work_context(worker).keys
        assert isinstance(keys, Keys)
        keys.writing.clear()
        keys.change("skewed", key("first"))
        worker.run_once()
        nothing = worker.reencrypt()
        keys.change("skewed", key("second"))
        keys.change("brief", key("b"))
        skewed = worker.reencrypt("skewed")
        rest = worker.reencrypt()
        verified = worker.verify()
        keys.change("skewed", None)
        del keys.all["skewed", "first"]
        plain = worker.reencrypt()
        return nothing, skewed, rest, verified, plain, worker.reencrypt()

    one, _ = both(tmp_path, *made, executor, work, keys=Keys())
    nothing, skewed, rest, verified, plain, last = one.told
    assert nothing.merged == last.merged == []
    assert 3 <= len(skewed.merged) == len(plain.merged)
    assert all("encrypted" in name for name in skewed.merged)
    assert len(rest.merged) >= 3
    assert not set(rest.merged) & set(skewed.archives)
    assert verified.ok
    assert all(not r.failed for r in (nothing, skewed, rest, plain, last))
    assert {is_on for name, is_on in encrypted(one) if name.startswith("warm3d")} == {True}
    assert {is_on for name, is_on in encrypted(one) if "encrypted" in name} == {False}
    assert len(one.held) == 900


def damage(folder: Path) -> None:
    """Have something wrong in the second segment."""
    path = sorted((folder / "commitlog").iterdir())[1]
    data = bytearray(path.read_bytes())
    at = data.index(b"message ") + 1
    data[at] ^= 1
    path.write_bytes(data)


def third(worker: Worker) -> str:
    """The third archive of the largest class; it is behind the segment that stays."""
    return [a.key for a in worker.archives() if a.retention_class == "warm11d-coldever"][2]


def test_what_is_damaged_is_told_alike_and_the_others_go_on(
    tmp_path: Path, made: tuple[Path, int], executor: SparkExecutor
) -> None:
    def work(worker: Worker, clock: VirtualClock) -> Any:
        damage(inside.store_path(worker))
        moved = worker.run_once()
        path = inside.store_path(worker) / "archive" / (name := third(worker))
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        return moved, name, worker.verify(), worker.merge(), worker.erase(key="k3")

    one, _ = both(tmp_path, *made, executor, work)
    moved, damaged, verified, merged, erased = one.told
    assert list(moved.failed) == ["segment 1"]
    assert len(moved.segments) >= 4
    assert {p.archive for p in verified.problems} == {f"archive/{damaged}"}
    assert len(merged.failed) == 1
    assert merged.merged
    assert not erased.is_proven
    assert len(erased.rewritten) >= 2


def test_a_worker_that_is_stopped_in_the_middle_has_done_nothing_by_half(
    tmp_path: Path, made: tuple[Path, int], executor: SparkExecutor
) -> None:
    def work(worker: Worker, clock: VirtualClock) -> Any:
        ends = [threading.Thread(target=worker.stop)]

        def told(what: str, done: int, total: int) -> None:
            if done >= SEGMENT and ends:
                ends.pop().start()

        inside.set_progress(worker, told)
        with pytest.raises(TieringStopped):
            worker.run_once()
        return len(worker.archives())

    side = worked(*made_at(made, tmp_path / "stopped"), work, executor)
    assert side.told > 0  # whole segments' archives
    whole = worked(*made_at(made, tmp_path / "whole"), lambda w, _: len(w.archives()), None)
    assert side.held == whole.held
    with kvstore.open(side.path, config(VirtualClock(made[1]))) as store:
        live = [row.key for row in decode_rows(store.catalog().rows)]
        assert sorted(side.objects) == sorted(f"archive/{name}" for name in live)
        with Worker(store, POLICY, executor=executor) as worker:
            assert worker.run_once().failed == {}
            assert len(store.segments()) == 0


def made_at(made: tuple[Path, int], target: Path) -> tuple[Path, Path, int]:
    folder, now = made
    return folder, target, now


__all__ = ["kvmq"]
"""A fixture, here too."""
POLICY_FILE = 'hot_for = "1d"\nwarm = "archive"\nclock_doubt = 0\nblock_bytes = 8192\ngrace = 0\n'


def test_each_verb_answers_as_the_embedded_one(
    kvmq: Kvmq, spark: SparkSession, made: tuple[Path, int], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    kvmq("tier", "key", "make", keys, "orders")

    def done(folder: Path, *, spark: bool) -> list[Any]:
        shutil.copytree(made[0], folder)
        policy = folder / "policy.toml"
        policy.write_text(POLICY_FILE)
        given = ("--policy", policy, "--json")
        first, rest = (("spark",), ("spark",)) if spark else (("tier",), ())
        moved = kvmq(*first, "tier" if spark else "run", folder, *given)
        compacted = kvmq(*first, "compact", folder, *given)
        merged = kvmq(*first, "merge", folder, *given)
        encrypted = kvmq(*first, "reencrypt", folder, *given, "--keys", keys)
        erased = kvmq(*rest, "erase", "key", folder, "k3", *given, "--keys", keys)
        verified = kvmq(*first, "verify", folder, "--json", "--keys", keys)
        ran = [moved, compacted, merged, encrypted, erased, verified]
        assert [one.code for one in ran] == [0] * 6, [one.err for one in ran]
        return [one.json for one in ran]

    one = done(tmp_path / "embedded", spark=False)
    other = done(tmp_path / "spark", spark=True)
    assert plain(one) == plain(other)
    assert [len(found.get("archives") or []) > 0 for found in one[:4]] == [True] * 4
    sides = [Side(tmp_path / name) for name in ("embedded", "spark")]
    for side in sides:
        with kvstore.open(side.path, config(VirtualClock(made[1])), read_only=True) as store:
            side.note(store, None)
    assert sides[0].objects == sides[1].objects
