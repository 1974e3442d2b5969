"""Commits: files appear together and once, wherever a crash comes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kvstore.errors import StoreError
from tests.tiering.spark.export.batches import contents
from tiering.errors import ExportBroken, ExportBusy, SparkFailed, SparkUnsuitable
from tiering.spark.export.commit import (
    BATCH,
    DONE,
    KEPT,
    OUT,
    Append,
    Commits,
    ExportManifest,
    Move,
    batch_name,
    compaction_name,
    staged,
)
from tiering.spark.export.hadoop import Folders

OLD = {"topic=a/day=1/old-1": b"1", "topic=a/day=1/old-2": b"2"}
NEW = {"topic=a/day=1/new": b"12", "topic=b/day=1/new": b"3"}


class CrashError(Exception):
    """The process ends here."""


class Crashing(Folders):
    """Files of a process that ends before one of its changes."""

    def __init__(self, spark: SparkSession, root: str, after: int) -> None:
        super().__init__(spark, root)
        self.left = after

    def _one(self) -> None:
        if self.left == 0:
            raise CrashError
        self.left -= 1

    def write(self, name: str, data: bytes) -> None:
        self._one()
        super().write(name, data)

    def rename(self, name: str, to: str) -> None:
        self._one()
        super().rename(name, to)

    def delete(self, name: str) -> None:
        self._one()
        super().delete(name)


def ignored(name: str, append: Append) -> None:
    """A table that nobody looks at."""


def stage_to(folders: Folders, name: str) -> Callable[[], ExportManifest]:
    """A call that replaces the old files by the new ones."""

    def stage() -> ExportManifest:
        moves = []
        for file, data in NEW.items():
            folders.write(f"{staged(name, OUT)}/{file}", data)
            moves.append(Move(f"{staged(name, OUT)}/{file}", file, len(data), len(data)))
        return ExportManifest(name=name, moves=tuple(moves), removes=tuple(OLD),
                        appends=(Append("t", "", ("topic=a/day=1/new",)),))  # fmt: skip

    return stage


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def seen(folder: Path) -> dict[str, bytes]:
    """The files that readers see."""
    return {name: data for name, data in contents(folder).items() if not name.startswith("_")}


def test_a_crash_before_any_change_leaves_the_old_or_the_new_after_the_next_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And meanwhile nothing is missing; what is staged without a manifest is gone."""
    outcomes = []
    ended = False
    told: dict[str, Append] = {}
    for after in range(60):
        folder = tmp_path / "out"
        put(folder, OLD)
        crashing = Crashing(spark, str(folder), after)
        commits = Commits(crashing, told.setdefault)
        try:
            commits.begin()
            commits.once(batch_name(7), stage_to(crashing, batch_name(7)))
            ended = True
        except CrashError:
            ended = False
        between = b"".join(seen(folder).values())
        assert set(b"12") <= set(between)
        folders = Folders(spark, str(folder))
        again = Commits(folders, told.setdefault)
        again.begin()
        outcomes.append(again.last(BATCH) == 7)
        assert seen(folder) == (NEW if outcomes[-1] else OLD)
        assert list(folder.glob("_kvmq/staging/*")) == []
        made = again.once(batch_name(7), stage_to(folders, batch_name(7)))
        assert (made is None) == outcomes[-1]
        assert seen(folder) == NEW
        assert list(told) == [batch_name(7)]
        told.clear()
        shutil.rmtree(folder)
        if ended:
            break
    assert ended
    # Until the manifest is there it was not, and from then on it was.
    assert outcomes == sorted(outcomes)
    assert 5 < outcomes.count(False) < len(outcomes) - 5


def test_a_number_that_was_committed_is_not_again(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(spark, str(tmp_path))
    commits = Commits(folders, ignored)
    commits.begin()

    def never() -> ExportManifest:
        raise AssertionError("it is committed")

    assert commits.once(batch_name(3), stage_to(folders, batch_name(3))) is not None
    before = contents(tmp_path)
    assert commits.once(batch_name(3), never) is None
    assert commits.once(batch_name(2), never) is None
    assert contents(tmp_path) == before
    assert (
        commits.once(compaction_name(0), lambda: ExportManifest(name=compaction_name(0)))
        is not None
    )


def test_an_export_that_began_later_goes_on_and_the_earlier_one_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    folders = Folders(spark, str(tmp_path))
    first, second = Commits(folders, ignored), Commits(folders, ignored)
    first.begin()

    def stage() -> ExportManifest:
        second.begin()
        return ExportManifest(name=batch_name(0))

    with pytest.raises(ExportBusy, match="another export"):
        first.once(batch_name(0), stage)
    assert second.once(batch_name(0), lambda: ExportManifest(name=batch_name(0))) is not None


class Overtaken(Folders):
    """Files of a process that is overtaken by another one before it changes a name with some text
    in it.
    """

    def __init__(self, spark: SparkSession, root: str, at: str, other: Callable[[], None]) -> None:
        super().__init__(spark, root)
        self.at_name, self.other = at, other

    def _one(self, name: str) -> None:
        if self.at_name and self.at_name in name:
            self.at_name = ""
            self.other()

    def write(self, name: str, data: bytes) -> None:
        self._one(name)
        super().write(name, data)

    def rename(self, name: str, to: str) -> None:
        self._one(to)
        super().rename(name, to)


@pytest.mark.parametrize("at", ["/manifest", "/pending/", "=a/", "=b/", "/done/"])
def test_wherever_another_export_overtakes_one_each_file_is_there_once(
    spark: SparkSession, tmp_path: Path, at: str
) -> None:
    """Before its manifest has its place the first one ends, and from then on both do the same."""
    put(tmp_path, OLD)
    folders = Folders(spark, str(tmp_path))
    second = Commits(folders, ignored)
    overtaken = Overtaken(spark, str(tmp_path), at, second.begin)
    first = Commits(overtaken, ignored)
    first.begin()
    name = batch_name(0)
    try:
        first.once(name, stage_to(folders, name))
        is_done = True
    except ExportBusy:
        is_done = False
    assert is_done == (at not in ("/manifest", "/pending/"))
    assert overtaken.at_name == ""
    assert second.last(BATCH) == (0 if is_done else -1)
    assert (second.once(name, stage_to(folders, name)) is None) == is_done
    second.begin()
    assert seen(tmp_path) == NEW
    assert second.last(BATCH) == 0


def test_of_what_is_done_the_newest_notes_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(spark, str(tmp_path))
    commits = Commits(folders)
    commits.begin()
    put(tmp_path, {f"{DONE}/{batch_name(n)}.json": b"" for n in range(KEPT + 5)})
    put(tmp_path, {f"{DONE}/{batch_name(3)}.json.bak": b"a copy that somebody made"})
    commits.once(batch_name(KEPT + 5), lambda: ExportManifest(name=batch_name(KEPT + 5)))
    assert len(list((tmp_path / DONE).glob("*.json"))) == KEPT
    assert commits.last(BATCH) == KEPT + 5


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda path: path.write_bytes(b"{"), "no manifest"),
        (lambda path: path.write_bytes(b'{"name": "batch-1", "version": 9}'), "newer one"),
        (
            lambda path: path.write_bytes(
                b'{"name": "batch-1", "moves": [{"staged": "x", "to": "y", "size": 1, '
                b'"messages": 1}]}'
            ),
            "is gone",
        ),
    ],
    ids=["damaged", "newer", "files gone"],
)
def test_notes_that_are_broken_are_told(
    spark: SparkSession, tmp_path: Path, break_it: Any, told: str
) -> None:
    put(tmp_path, {"_kvmq/pending/batch-1.json": b""})
    break_it(tmp_path / "_kvmq/pending/batch-1.json")
    with pytest.raises(ExportBroken, match=told):
        Commits(Folders(spark, str(tmp_path))).begin()


def test_what_hadoop_can_not_do_is_an_error_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    folders = Folders(spark, str(tmp_path))
    with pytest.raises(SparkFailed, match="does not exist"):
        folders.rename("none", "other")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreError):
        folders.write("file/below", b"x")
    with pytest.raises(SparkUnsuitable, match="PACKAGE-WITH-NONSENSE"):
        Folders(spark, "nonsense://place/x")
