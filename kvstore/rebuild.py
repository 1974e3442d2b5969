"""Rebuild: drop what the index derives from the log and make it anew.

The idea: with the derived families empty and the checkpoint at the log's beginning, opening is
rebuilding: recovery replays the whole log, in checkpoints. An index that can't be opened or read is
set aside and another one founded, in one batch, with that same checkpoint; nobody knows the durable
end any more then, so the log is read for it first.

A rebuild that was cut short: from the checkpoint at the log's beginning on, the next opening goes
on from the last checkpoint that was written. Before that there is no index, every opening says so,
and another rebuild begins anew.

Invariants: topics, groups and offsets stay, unless RocksDB itself can't be used: then its folder
is set aside, never deleted. No good record of a log that is ours is cut off for damage before it.
A folder that was never ours is adopted as by any opening, and nothing in it is set aside."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvstore import opening
from kvstore.adoption import Adoption
from kvstore.config import StoreConfig
from kvstore.errors import Damaged, SegmentDamaged, StoreNotFound
from kvstore.files import Files
from kvstore.index.keys import DERIVED, FAMILIES
from kvstore.log.segments import Segments, named_position
from kvstore.record.walk import Found, Kind, walk
from kvstore.recovery import Progress, RecoveryReport
from kvstore.rocketmq.configuration import read_configuration
from kvstore.rocketmq.layout import CONFIG
from kvstore.rocketmq.values import RocketMQSource
from kvstore.store import Store

_TOLD_EVERY = 4096


class RebuildReport(msgspec.Struct):
    """What was done: `set_aside` is where an index that could not be opened is now; the rest as in
    `RecoveryReport`.
    """

    recovery: RecoveryReport
    set_aside: str | None


def rebuild(
    path: str | Path, config: StoreConfig | None = None, *, progress: Progress | None = None
) -> RebuildReport:
    """Make a store's index anew from its log. The store must not be open.

    Raises `StoreNotFound`, `StoreLocked`, `FormatTooNew`, and what opening raises.
    """
    folder = Path(path)
    given = config if config is not None else StoreConfig()
    if opening.look(folder, given) is opening.Found.NOTHING:
        raise StoreNotFound(f"there is no store at {folder} to rebuild")
    lock = opening.take(folder, given)
    try:
        # Looked at again: before the lock was ours, another process may have changed what is there.
        found = opening.look(folder, given)
        ours = found in (opening.Found.OURS, opening.Found.OURS_WITHOUT_INDEX)
        set_aside = None
        if ours and not (found is opening.Found.OURS and _dropped(folder, given)):
            # A folder that came as a copy may not say it; from here on only this tells whose it is.
            lock.mark()
            set_aside = _founded_anew(folder, given, progress)
    finally:
        lock.release()
    with Store(folder, given, progress=progress) as store:
        return RebuildReport(store.recovery, set_aside)


def _founded_anew(folder: Path, config: StoreConfig, progress: Progress | None) -> str | None:
    """Found an index that has only the log, with the checkpoint at its beginning. Returns where the
    old one is now, if there was any.
    """
    aside = _set_aside(folder, config)
    adoption = _own_log(folder, config, progress)
    index, _ = opening.found_index(folder, config, adoption)
    index.close()
    return aside


def _dropped(folder: Path, config: StoreConfig) -> bool:
    """Empty the derived families of an index; False if it, or what would stay of it, is damaged."""
    try:
        if opening.is_unfounded(folder, config):
            return True  # and so opening founds it
        index, _ = opening.open_index(folder, config, opening.Found.OURS, read_only=False)
        try:
            index.load()
            for name in FAMILIES:
                if name not in DERIVED:
                    # Every row, so that what can't be read is found here, and not by a later opening.
                    deque(index.families.rows(name, b""), maxlen=0)
            index.drop_derived()
        finally:
            index.close()
    except Damaged:
        return False
    return True


def _set_aside(folder: Path, config: StoreConfig) -> str | None:
    """Move what there is of an index away; returns where to, None if there is nothing."""
    there = folder / opening.INDEX
    if not there.exists():
        return None
    number = 1
    while (aside := folder / f"index.damaged-{number}").exists():
        number += 1
    config.files.rename(there, aside)
    return str(aside)


# --- a log of ours, without anything that is known of it ---


def _own_log(folder: Path, config: StoreConfig, progress: Progress | None) -> Adoption:
    """The log as what a store is founded on. It ends behind its last good record, whatever is
    damaged before that: what kvmq put behind a record was put there after it.
    """
    files = config.files
    size = _segment_size(folder, config)
    segments = Segments(folder / opening.COMMITLOG, files, size, writable=False)
    first = segments.numbers[0] * size if segments.numbers else 0
    end = first
    for found in _walk(segments, progress):
        if found.kind is Kind.RECORD:
            end = found.stop
    # What RocketMQ left beside a log that was adopted in place is better than nothing.
    left = read_configuration(folder / CONFIG, files)
    source = RocketMQSource(
        path=folder,
        segment_size=size,
        segments=[(n * size, segments.path(n)) for n in segments.numbers],
        topics=left.topics,
        groups=left.groups,
        offsets=left.offsets,
        delay_offsets=left.delay_offsets,
        config_kind=left.kind,
        closed_cleanly=False,
        notes=left.notes,
    )
    return Adoption(source, end, [])


def _walk(segments: Segments, progress: Progress | None) -> Iterator[Found]:
    """Everything in the segments that can be read, in order; also in those of a wrong size."""
    total = len(segments.numbers) * segments.size
    for done, number in enumerate(segments.numbers):
        base = number * segments.size
        try:
            mapped = segments.files.map(segments.path(number), writable=False)
        except SegmentDamaged:
            continue  # recovery reports it
        try:
            end = min(mapped.size, segments.size)
            for count, found in enumerate(walk(mapped.buffer, base, 0, end)):
                yield found
                if progress is not None and count % _TOLD_EVERY == 0:
                    at = done * segments.size + found.stop - base
                    progress("looking for the log's end", at, total)
        finally:
            mapped.close()


def _segment_size(folder: Path, config: StoreConfig) -> int:
    """The size of the segments there are, which nobody else knows any more: the one that most files
    have, of those that all first positions are a multiple of.
    """
    commitlog = folder / opening.COMMITLOG
    starts = {
        name: start
        for name in config.files.list_dir(commitlog)
        if (start := named_position(name)) is not None and (commitlog / name).is_file()
    }
    sizes = Counter(_size(commitlog / name, config.files) for name in starts)
    fitting = [
        (count, size)
        for size, count in sizes.items()
        if size and not any(start % size for start in starts.values())
    ]
    return max(fitting)[1] if fitting else config.segment_size


def _size(path: Path, files: Files) -> int:
    return files.size(path) or 0
