"""Runs: collects the steps of one run of the worker, for its report and for the history.

The idea: each step reports its result; the error of a step is noted, and the run goes on. The
history has one JSON object a line, with the time, the deed and its amounts. A file that has grown
too large is written anew without its oldest half.

Invariants: a step that a report calls done is on the disk; nothing depends on the history, and a
line that can't be read is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from kvstore.clock import Clock
from kvstore.errors import StoreClosed, StoreError
from kvstore.files import Files
from kvstore.process.background import traced
from tiering.catalog.catalog import ArchiveRow
from tiering.errors import TieringStopped
from tiering.places.failures import told_of
from tiering.policy.schedule import SegmentDue
from tiering.worker.replace import Replaced

_BYTES_MAX: Final = 1 << 20
_log = logging.getLogger("kvmq")


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One deed: `what` is "archived", "cold", "merged", "parted", "reencrypted", "expired",
    "erased" or "failed"; `at` is ms since the epoch, `seconds` how long it took.
    """

    at: int
    what: str
    source: str
    archives: list[str] = []
    messages: int = 0
    raw_bytes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    note: str = ""


class History:
    """The lines in the history file."""

    def __init__(self, path: Path, files: Files, clock: Clock) -> None:
        self._path = path
        self._files = files
        self._clock = clock

    def add(self, what: str, source: str, **figures: object) -> HistoryEntry:
        """Adds a line for a deed that was done now."""
        done = msgspec.convert(
            {"at": self._clock.now_ms(), "what": what, "source": source, **figures}, HistoryEntry
        )
        try:
            self._write(msgspec.json.encode(done) + b"\n")
        except (OSError, StoreError) as e:
            # The deed is done, although a full disk keeps it from being noted.
            _log.warning("%s: %s of %s is not noted: %s", self._path, what, source, str(e))
        return done

    def _write(self, line: bytes) -> None:
        before = self._read()
        if len(before) > _BYTES_MAX:
            half = before.find(b"\n", len(before) // 2) + 1
            before = before[half:]
        self._files.make_dir(self._path.parent)
        self._files.write_whole(self._path, before + line)

    def last(self, count: int = 100) -> list[HistoryEntry]:
        """The newest entries, oldest first."""
        out = []
        for line in self._read().splitlines()[-count:]:
            try:
                out.append(msgspec.json.decode(line, type=HistoryEntry))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
        return out

    def _read(self) -> bytes:
        return self._files.read(self._path) if self._files.size(self._path) is not None else b""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run. `relocated` archives went cold. `archives` are new: `segments` became
    some, others have replaced the `merged` ones. `removed` are the names of objects and files that
    nothing needs any more; `failed` gives for each step that could not be done the reason.
    `waits_for_hours`: more is due, at other hours.
    """

    segments: list[int] = []
    archives: list[str] = []
    relocated: list[str] = []
    expired: list[str] = []
    merged: list[str] = []
    removed: list[str] = []
    failed: dict[str, str] = {}
    messages: int = 0
    raw_bytes: int = 0
    bytes: int = 0
    waits_for_hours: bool = False


class Run:
    """The results of a run so far."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.rows: list[ArchiveRow] = []
        self.segments: list[int] = []
        self.relocated: list[str] = []
        self.expired: list[str] = []
        self.merged: list[str] = []
        self.removed: list[str] = []
        self.failed: dict[str, str] = {}
        self.messages = 0

    def archived(
        self, segment: SegmentDue, rows: list[ArchiveRow], seconds: float, left_out: int
    ) -> None:
        """A segment became archives, which lack so many of its records: those of no topic."""
        self.segments.append(segment.number)
        note = segment.reason
        if left_out:
            note += f"; {left_out} records of no topic were left out"
        self._made("archived", f"segment {segment.number}", rows, seconds, note=note)

    def replaced(self, found: Replaced, seconds: float, what: str = "merged") -> None:
        """One archive took the place of others, by a merge or as `what` says."""
        self.merged += [row.key for row in found.old]
        rows = [found.row] if found.row is not None else []
        self._made(
            what, f"{len(found.old)} archives from {found.old[0].key}", rows, seconds,
            messages=found.merged.messages,
            note=f"{found.merged.dropped.total} messages were left out",
        )  # fmt: skip

    def parted(self, old: ArchiveRow, rows: list[ArchiveRow], seconds: float) -> None:
        """Several archives took the place of one, each with some of its topics."""
        self.merged.append(old.key)
        self._made("parted", old.key, rows, seconds)

    def _made(
        self, what: str, source: str, rows: list[ArchiveRow], seconds: float,
        *, messages: int | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """Notes new archives; `messages` are those that they were made of, if some are left out."""
        kept = sum(row.messages for row in rows)
        self.rows += rows
        self.messages += kept
        self._history.add(
            what, source, archives=[row.key for row in rows],
            messages=kept if messages is None else messages,
            raw_bytes=sum(row.raw_bytes for row in rows), bytes=sum(row.size for row in rows),
            seconds=round(seconds, 3), note=note,
        )  # fmt: skip

    def note_failure(self, what: str, why: Exception) -> None:
        """A step could not be done."""
        told = told_of(why)
        is_expected = isinstance(why, StoreError | OSError)
        _log.warning("tiering: %s: %s", what, told if is_expected else traced(why))
        self.failed[what] = told
        self._history.add("failed", what, note=told[:1000])

    def report(self, *, waits_for_hours: bool = False) -> RunReport:
        """The results so far."""
        return RunReport(
            segments=self.segments,
            archives=[row.key for row in self.rows],
            relocated=self.relocated,
            expired=self.expired,
            merged=self.merged,
            removed=self.removed,
            failed=self.failed,
            messages=self.messages,
            raw_bytes=sum(row.raw_bytes for row in self.rows),
            bytes=sum(row.size for row in self.rows),
            waits_for_hours=waits_for_hours,
        )


@contextmanager
def record_errors(
    note: Callable[[str, Exception], object], step: str, *kinds: type[Exception]
) -> Iterator[None]:
    """Gives the block's errors of these kinds to `note`, with the name of the step; they go no
    further. The errors of an end that was asked for do.
    """
    try:
        yield
    except (TieringStopped, StoreClosed):
        raise
    except kinds as e:
        note(step, e)
