"""Chooses the archives of a store that are merged next, and has them merged group by group.

The idea: `merge.choose` says which archives are worth it, and `replace` merges them. In between,
for a caller and for a worker that runs by itself: archives with something else due are left out,
a group that failed is left alone for a while, and each merge is reported.

Invariants: a group is merged or its archives are as they were; one that can't be read is not read
again at every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvstore.clock import Clock
from kvstore.errors import ArchiveDamaged, FormatTooNew, StoreClosed
from tiering.catalog.catalog import ArchiveRow, is_own
from tiering.errors import PlaceDenied, PlaceFull, PlaceUnavailable, TieringStopped
from tiering.merge.merge import choose
from tiering.policy.schedule import Agenda
from tiering.worker.looking import Looker, StoreSnapshot
from tiering.worker.replace import Replacer
from tiering.worker.runs import Run

MERGING: Final = "merging archives"
"""What is told, in bytes of archives."""
FAILED_FOR: Final = 3600.0
"""Seconds for which archives that could not be merged are left alone."""


class Merger:
    """Merges a store's archives, one group after the other."""

    def __init__(
        self,
        replacer: Replacer,
        looker: Looker,
        store_id: bytes,
        clock: Clock,
        tell: Callable[[str, int, int], None],
    ) -> None:
        self._store_id = store_id
        self._replacer = replacer
        self._looker = looker
        self._clock = clock
        self._tell = tell
        self._failed: dict[int, float] = {}
        self._merged = 0

    def begin(self, *, anew: bool) -> None:
        """Counts from nothing; `anew`: also tries groups that failed before."""
        self._merged = 0
        now = self._clock.monotonic()
        self._failed = {} if anew else {n: at for n, at in self._failed.items() if at > now}

    def next(
        self, agenda: Agenda, sight: StoreSnapshot, target_bytes: int, *, at_any_size: bool = False
    ) -> list[list[ArchiveRow]]:
        """The groups that are worth it now (see `choose`), without archives that are due to go cold
        or to be deleted, and without those that failed lately.
        """
        busy = {archive.key for archive in agenda.archives}
        rows = [
            row
            for row in self._looker.rows()
            if row.key not in busy
            and row.number not in self._failed
            and is_own(row, self._store_id)
        ]
        hot = self._looker.hot()
        kinds = {a.key: a.kind for a in sight.archives}
        return choose(rows, target_bytes, kinds, hot, at_any_size=at_any_size)

    def merge(
        self, groups: list[list[ArchiveRow]], sight: StoreSnapshot, now_ms: int, run: Run
    ) -> None:
        """Merges the first of the groups. An error is noted."""
        group = groups[0]
        began = self._clock.monotonic()
        left = sum(row.size for one in groups for row in one)
        self._tell(MERGING, self._merged, self._merged + left)
        try:
            done = self._replacer.merge(group, sight.today.traits, now_ms)
        except (TieringStopped, StoreClosed):
            raise
        except Exception as e:  # whatever it is, others may still be merged
            self._leave(groups, e, run)
        else:
            run.replaced(done, self._clock.monotonic() - began)
        self._merged += sum(row.size for row in group)

    def _leave(self, groups: list[list[ArchiveRow]], why: Exception, run: Run) -> None:
        """Leaves the archive alone for a while that is to blame; the first group, if none can be
        told; all archives in the same place, if the place is away.
        """
        group = groups[0]
        named = why.archive if isinstance(why, ArchiveDamaged | FormatTooNew) else ""
        blamed = [row for row in group if named.endswith(row.key)] or group
        run.failed_with(blamed[0].key, why)
        if isinstance(why, PlaceUnavailable | PlaceDenied | PlaceFull):
            blamed = [row for one in groups for row in one if row.place == group[0].place]
        until = self._clock.monotonic() + FAILED_FOR
        self._failed.update((row.number, until) for row in blamed)
