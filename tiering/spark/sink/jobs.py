"""Jobs: what a place has before a job, and what it has of it afterwards: all or nothing.

The idea: the driver looks at the place once, and tells the tasks where to begin. When all are done
it puts one object that names what counts. What tasks that failed, or lost a race, have put is named
by nothing, and goes with the commit, or the abort; what a job that died as a whole has left goes a
day later, when somebody writes there again.

Invariants: nothing that a commit names goes before another has replaced it; what a job wrote shows
whole, or not at all; the same batch of the same query counts once.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

import msgspec

from kvstore.errors import ConfigError
from tiering.archive.reader import Archive
from tiering.bucket import ArchiveObject, Found, found_in
from tiering.commits import (
    AT_ONCE,
    Commit,
    CommittedArchive,
    commits_of,
    committed,
    encode_commit,
    jobs_there,
    remove_replaced,
    remove_unnamed,
    take_ids,
)
from tiering.errors import CommitUncertain, ObjectNotFound, OffsetsTaken, PlaceError
from tiering.objectnames import commit_key, job_folder
from tiering.overlaps import Range, first_twice, ranges_of
from tiering.place import Place
from tiering.spark.sink.options import SinkOptions

_SEGMENT: Final = 1 << 30
_log = logging.getLogger("kvmq")


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a job begins with: whose archives it makes, the first position that is free, the next
    offset of each queue, by topic.
    """

    store_id: str
    position: int = 0
    ends: dict[str, dict[int, int]] = {}


def look(place: Place, options: SinkOptions, *, overwrite: bool) -> State:
    """What there is in a place. Raises StoresAmbiguous, ConfigError, PlaceError, ArchiveDamaged."""
    found = found_in(place, options.store_id)
    if found is None:
        return State(store_id=options.store_id or secrets.token_hex(16))
    if found.own and overwrite:
        raise ConfigError(
            f"{place.name} has archives that the worker of store {found.store_id} made; "
            "overwriting would take them from it: append, or write to a folder of its own"
        )
    if found.own and options.store_id is None:
        raise ConfigError(
            f"{place.name} has archives that the worker of store {found.store_id} made. If that "
            "store is gone, and this is to be restored together with them, say so by the option "
            "store_id; else write to a folder of its own"
        )
    ranges, position, ids = _of_own(place, found.own)
    position = max([position, *(one.end_position for one in found.committed)])
    if ids:
        take_ids(place, found.store_id, sorted(ids), ids)
    ends: dict[str, dict[int, int]] = {}
    if not overwrite:
        for one in (*ranges, *_ranges(found.committed)):
            queues = ends.setdefault(one.topic, {})
            queues[one.queue] = max(queues.get(one.queue, 0), one.last + 1)
    return State(store_id=found.store_id, position=-(-position // _SEGMENT) * _SEGMENT, ends=ends)


def _of_own(
    place: Place, objects: Sequence[ArchiveObject]
) -> tuple[list[Range], int, dict[str, int]]:
    """What archives of a worker hold: offsets, the position behind them, ids of topics."""
    if not objects:
        return [], 0, {}

    def opened(one: ArchiveObject) -> Archive:
        archive = Archive.open(place.source(one.key, one.size))
        _ = archive.manifest, archive.directory
        return archive

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kvmq-sink") as pool:
        archives = list(pool.map(opened, objects))
    ranges = [r for o, a in zip(objects, archives, strict=True) for r in ranges_of(a, o.key)]
    ends = [end for a in archives for _, end in a.manifest.segments]
    ends += [a.manifest.last_position + _SEGMENT for a in archives]
    topics = [t for a in archives for t in a.manifest.topics]
    return ranges, max(ends), {t.name: t.id for t in sorted(topics, key=lambda t: t.id)}


def _ranges(archives: Iterable[CommittedArchive]) -> list[Range]:
    return [
        Range(q.topic, q.queue, q.first, q.last, one.key) for one in archives for q in one.queues
    ]


# --- the end --------------------------------------------------------------------------------------


def commit(
    place: Place,
    store_id: str,
    job: str,
    archives: Sequence[CommittedArchive],
    *,
    overwrite: bool = False,
    query: str = "",
    batch: int = -1,
) -> bool:
    """Have what a job made count; False if it counts already, from an earlier try, which stays as
    it is. Raises OffsetsTaken, PlaceError, and then nothing of it counts; CommitUncertain if the
    place can't be asked any more whether it does.
    """
    before = committed(place, store_id, job)
    if before is None:
        old = commits_of(place, store_id)
        _check_offsets(place, store_id, archives, [] if overwrite else old)
        _check_there(place, store_id, job, archives)
        replaced = [one for one in old if one.job != job] if overwrite else []
        # What one of these has replaced may be there still, and must not count once that one went.
        before_them = {name for one in replaced for name in one.replaces}
        gone = {one.job for one in replaced} | jobs_there(place, store_id, before_them)
        made = Commit(
            job=job, archives=sorted(archives, key=lambda one: one.key), query=query, batch=batch,
            replaces=sorted(gone),
        )  # fmt: skip
        before = _put_commit(place, store_id, made)
        if before is None:
            _unless_unreachable(lambda: remove_replaced(place, store_id, replaced))
    _unless_unreachable(lambda: remove_unnamed(place, store_id, job))
    return before is None


def _put_commit(place: Place, store_id: str, made: Commit) -> Commit | None:
    """Put a commit; what is there in its place if another try of the same batch was first."""
    key = commit_key(store_id, made.job)
    try:
        place.put(key, encode_commit(made))
    except PlaceError as e:
        # The put may have got through, and its answer not.
        try:
            there = committed(place, store_id, made.job)
        except PlaceError:
            raise CommitUncertain(
                f"{e}. It is not known whether the job counts: it does if {place.name}/{key} is "
                "there. Look before it is run again: rows without offsets would be there twice",
                place.name,
            ) from e
        if there is None:
            raise
        return None if there == made else there
    return None


def _check_there(
    place: Place, store_id: str, job: str, archives: Sequence[CommittedArchive]
) -> None:
    """Nobody has removed meanwhile what the job has put, as a write a day later may."""
    there = {info.key: info.size for info in place.list(job_folder(store_id, job))}
    for one in archives:
        if there.get(one.key) != one.size:
            raise ObjectNotFound(
                f"{place.name}/{one.key} is not there any more as it was put: somebody has removed "
                "it, as each write does with what was put more than a day before and not "
                "committed; nothing of the job counts: run it again, in smaller jobs",
                place.name,
            )


def _check_offsets(
    place: Place, store_id: str, archives: Sequence[CommittedArchive], old: Sequence[Commit]
) -> None:
    mine = {one.key for one in archives}
    others = _ranges(a for one in old for a in one.archives if a.key not in mine)
    found = found_in(place, store_id) or Found(store_id, [], [])
    others += _of_own(place, found.own)[0]
    sizes = {a.key: a.size for one in old for a in one.archives}
    sizes |= {a.key: a.size for a in archives} | {o.key: o.size for o in found.own}

    _check_positions(archives, [a for one in old for a in one.archives], found.own)

    @cache
    def opened(key: str) -> Archive:
        return Archive.open(place.source(key, sizes[key]))

    twice = first_twice(_ranges(archives), others, opened)
    if twice is None:
        return
    which = "two tasks of this job" if set(twice.archives) <= mine else "an earlier job as well"
    raise OffsetsTaken(
        f"queue {twice.queue} of topic {twice.topic!r}: offsets {twice.first} to {twice.last} were "
        f"written by {which} ({twice.archives[0]} and {twice.archives[1]}); nothing of the job "
        "counts: drop the duplicates, overwrite what is there, or leave queue and offset out"
    )


def _check_positions(
    archives: Sequence[CommittedArchive],
    old: Sequence[CommittedArchive],
    own: Sequence[ArchiveObject],
) -> None:
    """No two archives begin at one position: of such only one would be taken for good."""
    known = {one.first_position: one.key for one in old} | {one.position: one.key for one in own}
    for one in archives:
        before = known.setdefault(one.first_position, one.key)
        if before != one.key:
            raise OffsetsTaken(
                f"{one.key} begins at position {one.first_position}, and so does {before}: another "
                "job has written there meanwhile, or the same rows were written twice; nothing of "
                "the job counts: run it again, or leave the column position out"
            )


def _unless_unreachable(step: Callable[[], object]) -> None:
    """What is left over costs space only; that it is so must not undo what was committed."""
    try:
        step()
    except PlaceError as e:
        _log.warning("left for the next write to remove: %s", e)
