"""Source: a RocketMQ store on disk, with the files of its log and its configuration.

The idea: every fault of a source is found here, before anything is made: a folder that is no store,
a hole between two files, a file of another size, bytes that are no commit log. The records of the
log are not looked at beyond that; `adopt` reads them.

Invariant: reading changes no file, name or modification time of the source.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from kvstore.errors import SegmentDamaged, StoreNotFound
from kvstore.files import Files
from kvstore.log.segments import named_position
from kvstore.record.layout import BLANK, BLANK_MAGIC, MAGIC_V1, MAGIC_V2
from kvstore.record.walk import next_good
from kvstore.rocketmq.config_values import Configuration
from kvstore.rocketmq.configuration import read_configuration
from kvstore.rocketmq.file_layouts import (
    ABORT_FILE,
    COMMITLOG,
    CONFIG,
    INDEX,
    ROCKSDB_CURRENT,
)

_KNOWN_MAGIC: Final = frozenset({MAGIC_V1, MAGIC_V2, BLANK_MAGIC})


class RocketMQSource(msgspec.Struct, frozen=True):
    """A RocketMQ store: its log's files, and its configuration. `segments` are (first position,
    path), in order and without holes, of `segment_size` bytes each.
    """

    path: Path
    segment_size: int
    segments: list[tuple[int, Path]]
    configuration: Configuration
    closed_cleanly: bool


def read_source(path: Path, files: Files) -> RocketMQSource:
    """A RocketMQ store, described; the broker must not be running.

    Raises StoreNotFound if there is none at `path`, SegmentDamaged if the files of its log don't
    fit together or are not a commit log, FormatError if its configuration is broken.
    """
    if _is_kvmq_store(path, files):
        raise StoreNotFound(f"{path} is a store of kvmq already; open it as it is")
    starts = _log_files(path, files)
    if not starts:
        raise StoreNotFound(
            f"{path} is not a RocketMQ store: {path / COMMITLOG} has no files named by 20 digits; "
            f"give the broker's storePathRootDir"
        )
    segments = [(start, path / COMMITLOG / name) for start, name in starts]
    size = _common_size(segments, files)
    _check_no_holes(segments, size)
    _check_is_log(segments[0], files)
    return RocketMQSource(
        path=path,
        segment_size=size,
        segments=segments,
        configuration=read_configuration(path / CONFIG, files),
        closed_cleanly=files.size(path / ABORT_FILE) is None,
    )


def _is_kvmq_store(path: Path, files: Files) -> bool:
    return files.size(path / INDEX / ROCKSDB_CURRENT) is not None


def _log_files(path: Path, files: Files) -> list[tuple[int, str]]:
    """First position and name of the log's files; files with other names are not RocketMQ's and are
    left alone.
    """
    try:
        names = files.list_dir(path / COMMITLOG)
    except NotADirectoryError:
        return []
    found = [(start, name) for name in names if (start := named_position(name)) is not None]
    # The broker removes an empty last file: it was about to be made when the broker ended.
    if found and files.size(path / COMMITLOG / found[-1][1]) == 0:
        found.pop()
    return found


def _common_size(segments: list[tuple[int, Path]], files: Files) -> int:
    sizes = [files.size(path) or 0 for _, path in segments]
    ((common, _),) = Counter(sizes).most_common(1)
    for size, (_, path) in zip(sizes, segments, strict=True):
        if size != common or not size:
            raise SegmentDamaged(
                f"{path} has {size} bytes, others have {common}: all files of a commit log have "
                f"the same size; restore it from a replica or a backup",
                str(path),
            )
    return common


def _check_no_holes(segments: list[tuple[int, Path]], size: int) -> None:
    first, path = segments[0]
    if first % size:
        raise SegmentDamaged(
            f"{path} begins at {first}, which is not a multiple of its size, {size}", str(path)
        )
    for number, (start, path) in enumerate(segments):
        expected = first + number * size
        if start != expected:
            missing = path.with_name(f"{expected:020}")
            raise SegmentDamaged(
                f"{missing} is missing: {path.name} is next after {number} files of {size} bytes; "
                f"restore it, or move the files before the hole away to do without them",
                str(missing),
            )


def _check_is_log(segment: tuple[int, Path], files: Files) -> None:
    """Refuses files that were never a commit log; damage in a commit log is another matter."""
    base, path = segment
    mapped = files.map(path, writable=False)
    try:
        head = mapped.buffer[: BLANK.size]
        if len(head) == BLANK.size:
            size, magic = BLANK.unpack(head)
            if magic in _KNOWN_MAGIC or (size, magic) == (0, 0):
                return
        if next_good(mapped.buffer, base, 0, mapped.size) < 0:
            raise SegmentDamaged(
                f"{path} is not a commit log: it begins with {head.hex(' ')}, and holds no record",
                str(path),
            )
    finally:
        mapped.close()
