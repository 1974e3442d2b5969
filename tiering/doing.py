"""Doing: what is due is done, in order, and noted.

The idea: a segment's archives, and an archive's cold copy, are made by whoever works for the worker
(`pool.Executor`); where several do, the next ones are begun while one is handed over (`ahead`). The
hand-over itself is the store's, one after the other, by the same rules.

Invariants: what is done, and in which order, does not depend on who works; a step that fails leaves
everything readable as it was, is noted, and the others go on; a segment that could not move is left
alone until the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from kvstore.clock import Clock
from kvstore.errors import StoreClosed, StoreError
from tiering.ahead import ahead
from tiering.catalog import ArchiveRow, decode_rows
from tiering.due import Agenda, ArchiveDue, SegmentDue
from tiering.errors import TieringStopped
from tiering.history import History
from tiering.looking import Looker, Sight
from tiering.moving import Mover
from tiering.pool import Executor
from tiering.regroup import Regrouped
from tiering.runs import Run
from tiering.shifting import Copied, Shifter
from tiering.storeside import HandOver
from tiering.trustedclock import TrustedClock

MOVING = "moving what is due"
"""What is told of a whole run, in bytes; beside it goes what is told of each step."""


class Doer:
    """See the module."""

    def __init__(
        self,
        side: HandOver,
        mover: Mover,
        shifter: Shifter,
        looker: Looker,
        executor: Executor,
        history: History,
        trusted: TrustedClock,
        clock: Clock,
        check: Callable[[], None],
        tell: Callable[[str, int, int], None],
    ) -> None:
        self._side = side
        self._mover = mover
        self._shifter = shifter
        self._looker = looker
        self._executor = executor
        self._history = history
        self._trusted = trusted
        self._clock = clock
        self._check = check
        self._tell = tell
        self.unfit: set[int] = set()
        """Segments that could not be moved in this run."""

    def do(self, agenda: Agenda, sight: Sight, run: Run) -> bool:
        """Do what is due; returns whether anything could be done."""
        total = sum(s.bytes for s in agenda.segments) + sum(a.bytes for a in agenda.archives)
        moved = sum(s.bytes for s in agenda.segments)
        done = self._move(agenda.segments, total, run)
        if not agenda.archives:
            return done
        rows = {row.key: row for row in self._looker.rows()}
        going = [a for a in agenda.archives if a.key not in run.failed]
        cold = [a for a in going if a.to == "cold"]
        done |= self._to_cold(cold, rows, (moved, total), run)
        moved += sum(a.bytes for a in cold)
        for archive in (a for a in going if a.to != "cold"):
            self._tell(MOVING, moved, total)
            done |= self._expire(rows[archive.key], sight, run)
            moved += archive.bytes
        return done

    def _move(self, segments: Sequence[SegmentDue], total: int, run: Run) -> bool:
        done, moved = False, 0

        def make(due: SegmentDue, check: Callable[[], None]) -> Regrouped:
            return self._mover.make(due, check)

        with closing(ahead(self._executor.width, self._check, segments, make)) as coming:
            for due, made in coming:
                self._tell(MOVING, moved, total)
                self._check()
                began = self._clock.monotonic()
                try:
                    found = self._mover.settle(due, made())
                except (TieringStopped, StoreClosed):
                    raise
                except (StoreError, OSError) as e:
                    # The others may still go: a damaged one must not fill the disk with them.
                    self.unfit.add(due.number)
                    run.failed_with(f"segment {due.number}", e)
                else:
                    run.moved(due, found.rows, found.messages, self._clock.monotonic() - began)
                    done = True
                moved += due.bytes
        return done

    def _to_cold(
        self,
        archives: Sequence[ArchiveDue],
        rows: dict[str, ArchiveRow],
        told: tuple[int, int],
        run: Run,
    ) -> bool:
        done, (moved, total) = False, told

        def numbered() -> Iterator[tuple[ArchiveRow, int]]:
            for archive in archives:
                yield rows[archive.key], self._shifter.take_number()

        def copy(one: tuple[ArchiveRow, int], check: Callable[[], None]) -> Copied:
            return self._shifter.copy(*one, check)

        with closing(ahead(self._executor.width, self._check, numbered(), copy)) as coming:
            for (row, _), copied in coming:
                self._tell(MOVING, moved, total)
                self._check()
                try:
                    self._shifter.settle(row, copied())
                except (TieringStopped, StoreClosed):
                    raise
                except (StoreError, OSError) as e:
                    run.failed_with(row.key, e)
                else:
                    run.shifted.append(row.key)
                    self._history.add("cold", row.key, bytes=row.size, messages=row.messages)
                    done = True
                moved += row.size
        return done

    def _expire(self, row: ArchiveRow, sight: Sight, run: Run) -> bool:
        self._check()
        try:
            topics = self._looker.judge.topics_of(row)
            kind = sight.today.class_of(row.retention_class, topics)
            is_done = self._shifter.expire(row, kind, self._trusted.now_ms())
        except (TieringStopped, StoreClosed):
            raise
        except (StoreError, OSError) as e:
            run.failed_with(row.key, e)
            return False
        if is_done:
            run.expired.append(row.key)
            self._history.add("expired", row.key, bytes=row.size, messages=row.messages)
        return is_done

    def sweep(self, run: Run) -> None:
        """Remove the objects of what is retired, as far as their time has come."""
        retired = [row for row in decode_rows(self._side.rows()) if row.state == "retired"]
        now = self._trusted.now_ms() if retired else 0
        for row in retired:
            with run.noting(row.key, StoreError, OSError):
                if self._shifter.sweep(row, now):
                    run.removed.append(row.name)
