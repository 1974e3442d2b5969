"""Merge scheduler: chooses the archives of a store that are merged next, group by group.

The idea: `merge.choose` says which archives are worth a merge, and `replace` merges them. In
between, for a caller and for a worker that runs by itself: archives with another step due are left
out, a group that failed is left alone for a while, and each merge is reported.

Invariants: a group is merged or its archives stay as they were; one that can't be read is not read
again at every run.
"""

from __future__ import annotations

from typing import Final

from kvstore.errors import ArchiveDamaged, FormatTooNew, StoreClosed
from tiering.catalog.catalog import ArchiveRow, is_own
from tiering.errors import PlaceDenied, PlaceFull, PlaceUnavailable, TieringStopped
from tiering.merge.merge import choose
from tiering.policy.schedule import Agenda
from tiering.worker.context import WorkContext
from tiering.worker.replace import Replacer
from tiering.worker.runs import Run
from tiering.worker.store_snapshot import StoreSnapshot

MERGING: Final = "merging archives"
"""The name of the progress, in bytes of archives."""
FAILED_FOR: Final = 3600.0
"""Seconds for which archives that could not be merged are left alone."""


class MergeScheduler:
    """Merges a store's archives, one group after the other."""

    def __init__(self, context: WorkContext, replacer: Replacer) -> None:
        self._context = context
        self._replacer = replacer
        self._failed: dict[int, float] = {}
        self._merged_bytes = 0

    def begin(self, *, anew: bool) -> None:
        """Begins a run; `anew`: groups that failed before are tried, too."""
        self._merged_bytes = 0
        now = self._context.clock.monotonic()
        self._failed = {} if anew else {n: at for n, at in self._failed.items() if at > now}

    def schedule(
        self,
        agenda: Agenda,
        snapshot: StoreSnapshot,
        target_bytes: int,
        *,
        at_any_size: bool = False,
    ) -> list[list[ArchiveRow]]:
        """The groups that are worth a merge now (see `choose`), without archives that are due to go
        cold or to be deleted, and without those that failed lately.
        """
        busy = {archive.key for archive in agenda.archives}
        rows = [
            row
            for row in self._context.rows()
            if row.key not in busy
            and row.number not in self._failed
            and is_own(row, self._context.side.store_id)
        ]
        hot = [segment.first_position for segment in self._context.side.sealed()]
        kinds = {a.key: a.kind for a in snapshot.archives}
        return choose(rows, target_bytes, kinds, hot, at_any_size=at_any_size)

    def merge_first(
        self, groups: list[list[ArchiveRow]], snapshot: StoreSnapshot, now_ms: int, run: Run
    ) -> None:
        """Merges the first of the groups. An error is noted."""
        group = groups[0]
        began = self._context.clock.monotonic()
        left = sum(row.size for one in groups for row in one)
        self._context.tell(MERGING, self._merged_bytes, self._merged_bytes + left)
        try:
            done = self._replacer.merge(group, snapshot.today.traits, now_ms)
        except (TieringStopped, StoreClosed):
            raise
        except Exception as e:  # after any error, others may still be merged
            self._back_off(groups, e, run)
        else:
            run.replaced(done, self._context.clock.monotonic() - began)
        self._merged_bytes += sum(row.size for row in group)

    def _back_off(self, groups: list[list[ArchiveRow]], why: Exception, run: Run) -> None:
        """Leaves the archive alone for a while that is to blame; the first group, if none can be
        told; all archives in the same place, if the place is away.
        """
        group = groups[0]
        named = why.archive if isinstance(why, ArchiveDamaged | FormatTooNew) else ""
        blamed = [row for row in group if named.endswith(row.key)] or group
        run.note_failure(blamed[0].key, why)
        if isinstance(why, PlaceUnavailable | PlaceDenied | PlaceFull):
            blamed = [row for one in groups for row in one if row.place == group[0].place]
        until = self._context.clock.monotonic() + FAILED_FOR
        self._failed.update((row.number, until) for row in blamed)
