"""Runs the agenda: archives, relocates and deletes what `schedule` found due; records each step.

The idea: the executor (`pool.Executor`) makes a segment's archives, and an archive's cold copy. The
next ones are begun while one is handed over (`ahead`), as many as it does at a time. The hand-over
itself is the store's, one after the other, by the same rules.

Invariants: the steps and their order do not depend on the executor; a step that fails, whatever the
error is, leaves everything readable as it was, is noted, and the others go on; a segment that could
not be archived is left alone until the next run; where a place is away, nothing more is made for it
(`waiting`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing

from kvstore.clock import Clock
from kvstore.errors import StoreClosed
from tiering.catalog.catalog import ArchiveRow, Tier, decode_rows
from tiering.errors import (
    PlaceDenied,
    PlaceError,
    PlaceFull,
    PlaceUnavailable,
    TieringStopped,
)
from tiering.executor.ahead import ahead
from tiering.executor.pool import Executor
from tiering.executor.regroup import Regrouped
from tiering.places.waiting import Waits
from tiering.policy.schedule import Agenda, ArchiveDue, SegmentDue
from tiering.policy.trusted_clock import TrustedClock
from tiering.worker.archive_segment import Mover
from tiering.worker.looking import Looker, StoreSnapshot
from tiering.worker.relocate import Copied, Shifter
from tiering.worker.runs import History, Run
from tiering.worker.store_side import HandOver

MOVING = "moving what is due"
"""What is told of a whole run, in bytes; beside it goes what is told of each step."""


class Doer:
    """Does an agenda in order, and leaves steps alone that failed."""

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
        waits: Waits,
        place_of: Callable[[Tier], str],
        check: Callable[[], None],
        tell: Callable[[str, int, int], None],
    ) -> None:
        self._waits = waits
        self._place_of = place_of
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

    def is_fit(self, segment: int) -> bool:
        """Whether a segment may be archived now, as far as is known."""
        return segment not in self.unfit and not self._waits.is_on(name_of(segment))

    def do(self, agenda: Agenda, sight: StoreSnapshot, run: Run) -> bool:
        """Does the agenda; returns whether anything could be done."""
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

        def make(due: SegmentDue, check: Callable[[], None]) -> Regrouped | None:
            return None if self._is_away(due) else self._mover.make(due, check)

        with closing(ahead(self._executor.width, self._check, segments, make)) as coming:
            for due, made in coming:
                self._tell(MOVING, moved, total)
                self._check()
                began = self._clock.monotonic()
                try:
                    regrouped = made()
                    if regrouped is None or self._is_away(due):
                        self._leave(due, regrouped, run)
                        continue
                    found = self._mover.settle(due, regrouped)
                except (TieringStopped, StoreClosed):
                    raise
                except Exception as e:
                    # On any error the others still go: one must not fill the disk with them.
                    self.unfit.add(due.number)
                    self._wait(name_of(due.number), tiers_of(due), e)
                    run.failed_with(name_of(due.number), e)
                else:
                    for what in (name_of(due.number), *self._places_of(due)):
                        self._waits.over(what)
                    run.moved(due, found.rows, found.messages, self._clock.monotonic() - began)
                    done = True
                moved += due.bytes
        return done

    def _places_of(self, due: SegmentDue) -> list[str]:
        return [self._place_of(tier) for tier in tiers_of(due)]

    def _is_away(self, due: SegmentDue) -> bool:
        return any(map(self._waits.is_on, self._places_of(due)))

    def _leave(self, due: SegmentDue, regrouped: Regrouped | None, run: Run) -> None:
        """Leaves a segment alone, as a place of its archives does; drops the files made of it."""
        self.unfit.add(due.number)
        if regrouped is not None:
            self._mover.discard(due, regrouped)
        away = next(place for place in self._places_of(due) if self._waits.is_on(place))
        run.failed[name_of(due.number)] = self._waits.why(away)

    def _wait(self, what: str, tiers: Collection[Tier], why: Exception) -> None:
        """Leaves a failed step alone: or the whole place, if that is to blame."""
        is_away = isinstance(why, PlaceUnavailable | PlaceDenied | PlaceFull)
        if is_away and isinstance(why, PlaceError) and why.place:
            what, tiers = why.place, [t for t in tiers if self._place_of(t) == why.place]
        self._waits.failed(what, tiers, why)

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
                row = rows[archive.key]
                why = self._out_of_reach(row)
                if why is None:
                    yield row, self._shifter.take_number()
                else:
                    run.failed[row.key] = why

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
                except Exception as e:
                    self._wait(row.key, ["cold"], e)
                    run.failed_with(row.key, e)
                else:
                    for what in (row.key, self._place_of("cold")):
                        self._waits.over(what)
                    run.shifted.append(row.key)
                    self._history.add("cold", row.key, bytes=row.size, messages=row.messages)
                    done = True
                moved += row.size
        return done

    def _out_of_reach(self, row: ArchiveRow) -> str | None:
        """Why an archive that is to go cold is left alone: for itself, or for a place; or None."""
        places = (self._place_of("cold"), self._shifter.place_of(row).name)
        away = (what for what in (row.key, *places) if self._waits.is_on(what))
        return next(map(self._waits.why, away), None)

    def _expire(self, row: ArchiveRow, sight: StoreSnapshot, run: Run) -> bool:
        self._check()
        try:
            topics = self._looker.judge.topics_of(row)
            kind = sight.today.class_of(row.retention_class, topics)
            is_done = self._shifter.expire(row, kind, self._trusted.now_ms())
        except (TieringStopped, StoreClosed):
            raise
        except Exception as e:
            run.failed_with(row.key, e)
            return False
        if is_done:
            run.expired.append(row.key)
            self._history.add("expired", row.key, bytes=row.size, messages=row.messages)
        return is_done

    def sweep(self, run: Run) -> None:
        """Removes the objects of retired archives whose time has come."""
        retired = [row for row in decode_rows(self._side.rows()) if row.state == "retired"]
        now = self._trusted.now_ms() if retired else 0
        for row in retired:
            place = self._shifter.place_of(row).name
            if self._waits.is_on(place):
                continue
            try:
                if self._shifter.sweep(row, now):
                    run.removed.append(row.name)
            except (TieringStopped, StoreClosed):
                raise
            except Exception as e:
                if isinstance(e, PlaceUnavailable | PlaceDenied):
                    self._waits.failed(place, (), e)
                run.failed_with(row.key, e)


def name_of(segment: int) -> str:
    """How reports call a segment."""
    return f"segment {segment}"


def tiers_of(due: SegmentDue) -> list[Tier]:
    """The tiers that archives of a segment go to."""
    return sorted({part.to for part in due.parts if part.to is not None})
