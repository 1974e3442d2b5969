"""Dead jobs: removes archives that jobs have put and that do not count.

The idea: a job removes the archives that its commit does not name when it ends. Archives of a job
that died are removed a day later. A job that is given up is first named by a commit that aborts it.
From then on none of its archives can come to count, so they can be removed, even if a put of its
commit is still on its way.

Invariants: no archive is removed that a commit names or could still name; overwritten archives are
removed once the commit that overwrites them is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from tiering.errors import PlaceError
from tiering.places.commits import Commit, CommitLog
from tiering.places.objects import (
    GROUP,
    JOBS_FOLDER,
    OF_JOB,
    group_folder,
    job_folder,
    job_name,
)
from tiering.places.place import ObjectInfo, Place

DAY: Final = 86_400_000
"""Ms after which archives that a job has left uncommitted are taken for a dead job's."""
HOUR: Final = 3_600_000
"""Ms between two searches for the leftovers of dead jobs."""


def remove_unnamed(log: CommitLog, begun: int, job: str) -> list[str]:
    """Removes archives that a job has put and no commit names, as of the log's last look. Returns
    the names. The job must have a commit, or be aborted.
    """
    folder = job_folder(log.store_id, begun, job)
    named = _named(log.since(begun))
    unnamed = [info.key for info in log.place.list(folder) if info.key not in named]
    for key in unnamed:
        log.place.delete(key)
    _remove_leftovers(log.place, log.place.leftovers(folder))
    return unnamed


def abort(log: CommitLog, begun: int, job: str) -> list[str]:
    """Gives a job up, unless it has a commit, and removes archives that it has put and no commit
    names. Returns the names. Raises PlaceError, CommitUncertain; then all of them stay.
    """
    folder = job_folder(log.store_id, begun, job)
    if not any(True for _ in log.place.list(folder)):
        _remove_leftovers(log.place, log.place.leftovers(folder))
        return []
    log.look()
    name = job_name(begun, job)
    while not any(one.job == job or name in one.aborts for one in log.since(begun)):
        if log.append(Commit(begun=log.head.number, aborts=[name])):
            log.note(log.head)
    return remove_unnamed(log, begun, job)


def clear_overwritten(log: CommitLog) -> list[str]:
    """Removes the archives of commits that were overwritten. Returns the names."""
    head = log.head
    if head.cleared >= head.counts_from:
        return []
    gone = log.since(head.cleared)[: head.counts_from - head.cleared]
    keys = sorted(_named(gone) - _named(log.since(head.counts_from)))
    for key in keys:
        log.place.delete(key)
    log.head = replace(log.head, cleared=head.counts_from)
    return keys


def sweep(place: Place, now: int, age: int = DAY) -> list[str]:
    """`sweep_jobs` for the jobs of all stores in a place."""
    named = (JOBS_FOLDER.fullmatch(name) for name in place.folders())
    stores = {name[1] for name in named if name is not None}
    # A job may have died before any of its archives had its final name.
    stores |= {left[1] for i in place.leftovers() if (left := OF_JOB.search(i.key)) is not None}
    return [name for one in sorted(stores) for name in sweep_jobs(CommitLog(place, one), now, age)]


def sweep_jobs(log: CommitLog, now: int, age: int = DAY) -> list[str]:
    """Removes the leftovers of dead jobs that were last written `age` ms ago or earlier, and
    overwritten archives; does nothing if that was done within the hour. Returns the names, but for
    those of unfinished puts.
    """
    head = log.look()
    if abs(now - head.swept_at) < HOUR:
        return []
    removed = clear_overwritten(log)
    first = head.swept // GROUP
    # From the first listed job on: to judge a job that is not named here, all commits are read.
    named = _named(log.since(first * GROUP))
    swept = head.number
    for group in range(first, head.number // GROUP + 1):
        folder = group_folder(log.store_id, group)
        found = [*log.place.list(folder), *log.place.leftovers(folder)]
        for (begun, job), infos in sorted(_by_job(found).items()):
            if max(info.modified for info in infos) >= now - age:
                swept = min(swept, begun)
            elif any(info.key not in named for info in infos):
                removed += abort(log, begun, job)
    if log.head.number:
        log.note(replace(log.head, swept=swept, swept_at=now))
    return removed


def _by_job(found: Iterable[ObjectInfo]) -> dict[tuple[int, str], list[ObjectInfo]]:
    out: dict[tuple[int, str], list[ObjectInfo]] = {}
    for info in found:
        of = OF_JOB.search(info.key)
        if of is not None:
            out.setdefault((int(of[3]), of[4]), []).append(info)
    return out


def _named(commits: Iterable[Commit]) -> set[str]:
    return {archive.key for one in commits for archive in one.archives}


def _remove_leftovers(place: Place, found: Iterable[ObjectInfo]) -> None:
    for info in list(found):
        with suppress(PlaceError):
            place.remove_leftover(info.key)
