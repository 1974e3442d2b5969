"""Log files: everything in the files of a log, in order, with the gaps between them.

The idea: files are walked one after the other, each mapped only while it is walked. Faults that
show only among several files are added: files that are missing, of another size, or that end where
no file of a log can end. Zeros up to the end of a file mean that the log ends there, so they are
damage after all when the log goes on in a later file.

Invariants: any files give extents, and the only error is OSError for a file that can't be read; at
most one file is mapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvstore.core.messages import StoredMessage, decode
from kvstore.core.records import check_record, property_crc_problem
from kvstore.errors import RecordDamaged, SegmentDamaged
from kvstore.files import Files
from kvstore.log.segments import named_position
from kvstore.record.walk import Extent, Kind, extents, walk
from kvstore.rocketmq.file_layouts import COMMITLOG
from kvstore.rocketmq.kinds import base_of

if TYPE_CHECKING:
    from kvstore.core.records import Buffer


class FileExtent(NamedTuple):
    """An extent, its file, and the record if it is one.

    The record's body is as stored. If the record carries a CRC over the whole record that does not
    fit, `found.reason` says so. For damage, `position` is -1 where it is not known, and `size` is 0
    where something is missing.
    """

    path: Path
    found: Extent
    message: StoredMessage | None = None


def log_files(folder: Path, files: Files) -> list[Path]:
    """The log's files in a commit-log folder, or in a store's; none if there are none."""
    for place in (folder / COMMITLOG, folder):
        try:
            names = files.list_dir(place)
        except NotADirectoryError:
            continue
        if found := [place / name for name in names if named_position(name) is not None]:
            return found
    return []


def read_log(paths: Sequence[Path], files: Files, start: int = 0) -> Iterator[FileExtent]:
    """Everything in log files that are given in order, from position `start` on."""
    sizes = [files.size(path) or 0 for path in paths]
    usual = max(sizes, default=0)
    expected: int | None = None
    ends: list[FileExtent] = []
    for path, size in zip(paths, sizes, strict=True):
        begin = named_position(path.name)
        if begin is None or not size or begin + size > start:
            for extent in _read_among(path, size, usual, expected, files):
                if extent.found.position >= 0 and extent.found.stop <= start > 0:
                    continue
                if extent.found.kind is Kind.END:
                    ends.append(extent)
                    continue
                yield from map(_as_damage, ends)
                ends.clear()
                yield extent
        expected = None if begin is None else begin + usual
    yield from ends


def read_record(paths: Sequence[Path], files: Files, position: int) -> FileExtent | None:
    """The extent that begins at a position, else the one across it; None if no file has the
    position.
    """
    for path in paths:
        size = files.size(path) or 0
        begin = named_position(path.name)
        if size and (begin is None or begin <= position < begin + size):
            mapped = files.map(path, writable=False)
            try:
                base = base_of(mapped.buffer, path.name)
                if base is not None and base <= position < base + size:
                    found = _at(mapped.buffer, base, position)
                    return _with_message(path, mapped.buffer, base, found)
            finally:
                mapped.close()
    return None


def _at(buffer: Buffer, base: int, position: int) -> Extent:
    end = len(buffer)
    try:
        size = check_record(buffer, position - base, end, position)
    except RecordDamaged:
        size = 0
    if size:
        return Extent(Kind.RECORD if size > 0 else Kind.BLANK, position, abs(size))
    across = (found for found in extents(walk(buffer, base, 0, end)) if found.stop > position)
    # A blank record is the last extent of a walk, even if its size does not fill the file.
    return next(across, Extent(Kind.BLANK, position, base + end - position))


def _read_among(
    path: Path, size: int, usual: int, expected: int | None, files: Files
) -> Iterator[FileExtent]:
    """Everything in one file, and the faults of its place and size among the others."""
    begin = named_position(path.name)
    if begin is not None and expected is not None and begin != expected:
        reason = (
            f"no file for the positions from {expected} to {begin}"
            if begin > expected
            else f"{path.name} begins before {expected}, where the file before it ends"
        )
        yield _damage(path, min(begin, expected), abs(begin - expected), reason)
    if not size:
        yield _damage(path, -1 if begin is None else begin, 0, f"{path} is empty")
        return
    yield from _read_file(path, files)
    if size != usual:
        reason = f"{path} has {size} bytes, the largest of the files has {usual}"
        yield _damage(path, -1 if begin is None else begin + size, 0, reason)


def _read_file(path: Path, files: Files) -> Iterator[FileExtent]:
    try:
        mapped = files.map(path, writable=False)
    except SegmentDamaged as e:
        yield _damage(path, -1, 0, str(e))
        return
    try:
        base = base_of(mapped.buffer, path.name)
        if base is None:
            yield _damage(path, -1, mapped.size, f"{path} is not a log file: it holds no record")
            return
        begin = named_position(path.name)
        if begin is not None and begin != base:
            yield _damage(path, base, 0, f"{path} is misnamed: its records say it begins at {base}")
        last: Extent | None = None
        for last in extents(walk(mapped.buffer, base, 0, mapped.size)):
            yield _with_message(path, mapped.buffer, base, last)
        if last is not None and last.kind is Kind.RECORD:
            reason = f"{path} ends behind a record; a whole file has a blank record or zeros there"
            yield _damage(path, last.stop, 0, reason)
    finally:
        mapped.close()


def _with_message(path: Path, buffer: Buffer, base: int, found: Extent) -> FileExtent:
    if found.kind is not Kind.RECORD:
        return FileExtent(path, found)
    at = found.position - base
    found = found._replace(reason=property_crc_problem(buffer, at, found.size, found.position))
    try:
        message = decode(
            buffer,
            at,
            at + found.size,
            position=found.position,
            check_crc=False,  # the walk has done it
        )
    except RecordDamaged as e:  # the topic is not UTF-8
        return FileExtent(path, found._replace(kind=Kind.DAMAGE, reason=str(e)))
    return FileExtent(path, found, message)


def _as_damage(extent: FileExtent) -> FileExtent:
    """Zeros up to the end of a file behind which the log goes on."""
    found = extent.found
    reason = f"zeros from {found.position} to the end of the file, but the log goes on behind"
    return extent._replace(found=found._replace(kind=Kind.DAMAGE, reason=reason))


def _damage(path: Path, position: int, size: int, reason: str) -> FileExtent:
    return FileExtent(path, Extent(Kind.DAMAGE, position, size, reason))
