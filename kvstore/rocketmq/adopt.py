"""Adoption: a RocketMQ store's log becomes the log of a new store, and the source stays as it is.

The idea: the formats are the same, so the files are taken as they are. Full files get a second name
(a hard link: no time, no space); the file with the log's end is copied, because it will be written
to. Files behind it are left out: RocketMQ deletes them when it recovers.

Everything is made in `NAME.importing` beside the target and renamed at the end. While there is a
file `NAME.importing.started`, that folder holds an unfinished import.

    staged = stage_log(source, target, files)   the log, whole, in staged.path
    ...                                         whatever else the store needs, in there too
    publish(staged.path, target, files)         from now on the target is there

Invariants: no byte and no time of a file of the source changes; a target is there whole or not at
all; every file of the target that may be written to is a copy.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

import msgspec

from kvstore.errors import CallerError, DiskFull
from kvstore.files import Files
from kvstore.record.walk import Extent
from kvstore.rocketmq.config.config_values import RocketMQSource
from kvstore.rocketmq.file_layouts import COMMITLOG
from kvstore.rocketmq.log_end import Progress, find_end

STAGING: Final = ".importing"
"""Added to the target's name: the folder in which it is made."""
STARTED: Final = ".started"
"""Added to that folder's name: the file that marks it as an import's."""


class TakenLog(msgspec.Struct, frozen=True):
    """A log that was taken over.

    `path` is the folder above `commitlog`. The log has `records` from `first_position` to `end`.
    `cut_reason` says why RocketMQ would end it there or before (empty: nothing was written behind),
    and `lost_records` how many whole records that leaves behind, in the source. `damage` lies
    before the end, and readers have to skip it. `linked` and `copied` name the files.
    """

    path: Path
    segment_size: int
    first_position: int
    end: int
    records: int
    cut_reason: str
    lost_records: int
    damage: list[Extent]
    linked: list[str]
    copied: list[str]


def stage_log(
    source: RocketMQSource, target: Path, files: Files, progress: Progress | None = None
) -> TakenLog:
    """Make the log in a staging folder, which `publish` later renames to `target`.

    The files of an unfinished import are removed first. `progress` is called with bytes done and
    bytes in all. Raises CallerError, and changes nothing, if the target is there and not empty, or
    lies inside the source.
    """
    _check_target(source, target, files)
    staging = target.with_name(target.name + STAGING)
    try:
        _start(staging, files)
    except OSError as e:
        why = e.strerror or e
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room for {target}: {why}; free disk space") from e
        raise CallerError(
            f"{target} can't be made: {why} ({e.filename or staging}); name a folder that can"
        ) from e
    end = find_end(source, files, progress)
    linked: list[str] = []
    copied: list[str] = []
    for start, path in source.segments:
        if start + source.segment_size <= end.end:
            is_linked = files.link_or_copy(path, staging / COMMITLOG / path.name)
            (linked if is_linked else copied).append(path.name)
        elif start <= end.end:
            files.copy(path, staging / COMMITLOG / path.name)
            copied.append(path.name)
    return TakenLog(
        path=staging,
        segment_size=source.segment_size,
        first_position=source.segments[0][0],
        end=end.end,
        records=end.records,
        cut_reason=end.reason,
        lost_records=end.lost_records,
        damage=end.damage,
        linked=linked,
        copied=copied,
    )


def publish(staging: Path, target: Path, files: Files) -> None:
    """Rename the staging folder to the target, atomically and durably."""
    files.rename(staging, target)
    files.remove(_marker(staging))


def _marker(staging: Path) -> Path:
    return staging.with_name(staging.name + STARTED)


def _check_target(source: RocketMQSource, target: Path, files: Files) -> None:
    if target.resolve().is_relative_to(source.path.resolve()):
        raise CallerError(
            f"{target} lies in {source.path}, which is not to be changed; name another"
        )
    if _is_used(target, files):
        raise CallerError(f"{target} is there and not empty; name a folder that is new or empty")


def _start(staging: Path, files: Files) -> None:
    """Make an empty staging folder, with the file that marks it as an import's."""
    marker = _marker(staging)
    if _is_used(staging, files) and files.size(marker) is None:
        raise CallerError(
            f"{staging} is there and no import left it; move it away, or name another target"
        )
    files.make_dir(staging.parent)
    files.write_whole(marker, b"An import into this folder was not finished. It can be removed.\n")
    _empty(staging, files)
    files.make_dir(staging / COMMITLOG)


def _is_used(path: Path, files: Files) -> bool:
    """Whether the path is a file, or a folder with something in it."""
    try:
        return bool(files.list_dir(path))
    except NotADirectoryError:
        return path.exists()  # otherwise a parent of the path is no folder


def _empty(folder: Path, files: Files) -> None:
    """Remove every file below a folder; its folders stay, and are empty."""
    for name in files.list_dir(folder):
        path = folder / name
        try:
            _empty(path, files)
        except NotADirectoryError:
            files.remove(path)
