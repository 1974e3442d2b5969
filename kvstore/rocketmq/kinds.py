"""Kinds: what a file is, by its folder and name, else by its content.

The idea: the place of a file where RocketMQ (or kvmq) put it tells its kind, even when it is
damaged. The content tells the kind of a file that was copied elsewhere: a record or blank at its
start, units of a consume queue that point forward, or, last, any good record at all.

Invariants: nothing is written; of a file of any size at most a window is in memory; a file of no
known kind is None, not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

from kvstore.core.records import check_record
from kvstore.errors import FormatError, RecordDamaged
from kvstore.files import Files
from kvstore.log.segments import named_position
from kvstore.record.layout import (
    BLANK,
    BLANK_MAGIC,
    FIXED_V1,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    POSITION,
    POSITION_AT,
)
from kvstore.record.walk import magics
from kvstore.rocketmq.file_layouts import (
    BATCH_CONSUMEQUEUE,
    BATCH_UNIT,
    CHECKPOINT,
    CHECKPOINT_FILE,
    COMMITLOG,
    CONSUMEQUEUE,
    INDEX,
    INDEX_NAME,
    QUEUE_UNIT,
    SKIPPED_UNIT,
)
from kvstore.rocketmq.side_files import read_items

if TYPE_CHECKING:
    from kvstore.core.records import Buffer

_UNITS_LOOKED_AT: Final = 64
_RECORD_MAX: Final = 1 << 30
"""The largest size of a record."""
_KNOWN_MAGIC: Final = frozenset({MAGIC_V1, MAGIC_V2, BLANK_MAGIC})


class FileKind(StrEnum):
    """The kinds of files that `kvmq dump` can read."""

    LOG = "log"
    QUEUE = "queue"
    BATCH_QUEUE = "batch-queue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"


def kind_of(path: Path, files: Files) -> FileKind | None:
    """The kind of a file; None if it is neither RocketMQ's nor of kvmq's log."""
    return _by_place(path, files) or _by_content(path, files)


def base_of(buffer: Buffer, name: str) -> int | None:
    """The log position of a file's first byte, by its records, else by its name.

    None if neither tells it. A name that the records contradict doesn't count: somebody renamed the
    file.
    """
    by_name = named_position(name)
    if by_name is not None and (_checks_out(buffer, 0, by_name) or not any(buffer[:FIXED_V1])):
        return by_name
    return next(_stated_bases(buffer), by_name)


def _by_place(path: Path, files: Files) -> FileKind | None:
    absolute = path.absolute()
    parents = [parent.name for parent in absolute.parents[:3]] + [""] * 3
    is_named = named_position(path.name) is not None
    if is_named and parents[0] == COMMITLOG:
        return FileKind.LOG
    if is_named and parents[2] == CONSUMEQUEUE:
        return FileKind.QUEUE
    if is_named and parents[2] == BATCH_CONSUMEQUEUE:
        return FileKind.BATCH_QUEUE
    if INDEX_NAME.fullmatch(path.name) and parents[0] == INDEX:
        return FileKind.INDEX
    if path.name == CHECKPOINT_FILE and (files.size(path) or 0) >= CHECKPOINT.size:
        return FileKind.CHECKPOINT
    return None


def _by_content(path: Path, files: Files) -> FileKind | None:
    size = files.size(path)
    if not size:
        return None
    head = files.read(path, 0, max(FIXED_V1, _UNITS_LOOKED_AT * BATCH_UNIT.size))
    if len(head) >= BLANK.size and BLANK.unpack_from(head)[1] in _KNOWN_MAGIC:
        return FileKind.LOG
    if not any(head) and named_position(path.name) is not None:
        return FileKind.LOG
    if _is_queue(head, size, QUEUE_UNIT):
        return FileKind.QUEUE
    if _is_queue(head, size, BATCH_UNIT):
        return FileKind.BATCH_QUEUE
    if _is_index(path, files):
        return FileKind.INDEX
    mapped = files.map(path, writable=False)
    try:
        has_record = next(_stated_bases(mapped.buffer), None) is not None
    finally:
        mapped.close()
    return FileKind.LOG if has_record else None


def _is_queue(head: bytes, size: int, unit: Struct) -> bool:
    """Whether the first units, as far as they are used, point forward into a log."""
    if size % unit.size:
        return False
    before, used = -1, 0
    whole = min(len(head) // unit.size, _UNITS_LOOKED_AT) * unit.size
    for fields in unit.iter_unpack(head[:whole]):
        position, record_size, tags_code = fields[:3]
        if (position, record_size, tags_code) in (SKIPPED_UNIT, (0, 0, 0)):
            continue
        if position <= before or not 0 < record_size < _RECORD_MAX:
            return False
        before, used = position, used + 1
    return used > 0


def _is_index(path: Path, files: Files) -> bool:
    if INDEX_NAME.fullmatch(path.name) is None:
        return False
    try:
        return next(read_items(path, files), None) is not None
    except FormatError:
        return False


def _stated_bases(buffer: Buffer) -> Iterator[int]:
    """The position at which the file would begin, by each of its records that then checks out."""
    for magic_at in magics(buffer, MAGIC_AT, len(buffer)):
        at = magic_at - MAGIC_AT
        if at + FIXED_V1 <= len(buffer):
            base = POSITION.unpack_from(buffer, at + POSITION_AT)[0] - at
            if base >= 0 and _checks_out(buffer, at, base):
                yield base


def _checks_out(buffer: Buffer, at: int, base: int) -> bool:
    """Whether a record is at index `at` of a buffer that begins at position `base`."""
    try:
        return check_record(buffer, at, len(buffer), base + at) > 0
    except RecordDamaged:
        return False
