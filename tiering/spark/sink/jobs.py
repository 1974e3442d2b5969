"""Jobs: reads the state of a place before a job writes to it, and commits the job after.

The idea: the driver looks at the place once, and tells the tasks where to begin. When all are done
it adds one commit, which names the archives that count. Archives that failed tasks, or tasks that
lost a race, have put are named by nothing, and go with the commit, or the abort. The remains of a
job that died as a whole go a day later, when somebody writes there again.

Invariants:

- Each commit was compared with all before it.
- A job's archives show whole, or not at all.
- The same batch of the same query counts once.
- The cost of a job doesn't grow with the number of jobs before it, unless its offsets or positions
  lie before the ends of what is there.
- The cost grows with the archives of a worker in the place, whose directories are read.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Final

import msgspec

from kvstore.errors import ConfigError
from tiering.archive.archive_reader import open_lazily
from tiering.archive.manifest import Manifest
from tiering.catalog.archive_pool import OpenArchives
from tiering.catalog.bucket import ArchiveObject, check_single_store, own_archives, stores_in
from tiering.catalog.overlaps import OffsetRange, first_duplicate, ranges_of
from tiering.catalog.pipeline import go_on, pipelined
from tiering.errors import JobAborted, ObjectNotFound, OffsetsTaken, PlaceError
from tiering.operations.source_place import OPEN_BYTES
from tiering.places.commits import (
    AT_ONCE,
    Commit,
    CommitLog,
    CommittedArchive,
    TopicIds,
    read_ids,
    take_ids,
)
from tiering.places.dead_jobs import clear_overwritten, remove_unnamed
from tiering.places.objects import job_folder, job_name
from tiering.places.place import Place
from tiering.spark.options import SinkOptions

_SEGMENT: Final = 1 << 30
_log = logging.getLogger("kvmq")


class PlaceState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a place as a job begins: whose archives it makes, the first position that is
    free, the next offset of each queue, by topic; the number of commits, and the ids of topics, by
    so many lists.
    """

    store_id: str
    position: int = 0
    ends: dict[str, dict[int, int]] = {}
    begun: int = 0
    ids: dict[str, int] = {}
    lists: int = 0


def read_state(place: Place, options: SinkOptions, *, overwrite: bool) -> PlaceState:
    """A place's state. Raises StoresAmbiguous, ConfigError, PlaceError, ArchiveDamaged."""
    log = _log_of(place, options.store_id)
    if log is None:
        return PlaceState(store_id=options.store_id or secrets.token_hex(16))
    own = own_archives(place, log.store_id)
    if own and overwrite:
        raise ConfigError(
            f"{place.name} has archives that the worker of store {log.store_id} made; "
            "overwriting would take them from it: append, or write to a folder of its own"
        )
    if own and options.store_id is None:
        raise ConfigError(
            f"{place.name} has archives that the worker of store {log.store_id} made. If that "
            "store is gone, and this is to be restored together with them, say so by the option "
            "store_id; else write to a folder of its own"
        )
    head = log.head
    ranges, position, ids = _of_own(place, own)
    known = TopicIds(head.ids, head.lists)
    if ids:
        known = take_ids(place, log.store_id, sorted(ids), known=known, given=ids)
    ends = {} if overwrite else head.ends()
    for one in ranges:
        queues = ends.setdefault(one.topic, {})
        queues[one.queue] = max(queues.get(one.queue, 0), one.last + 1)
    position = -(-max(position, head.position) // _SEGMENT) * _SEGMENT
    return PlaceState(
        store_id=log.store_id, position=position, ends=ends, begun=head.number,
        ids=dict(known.ids), lists=known.lists,
    )  # fmt: skip


def _log_of(place: Place, store_id: str | None) -> CommitLog | None:
    """The commits of the store that is asked for, or of the only one there is."""
    logs = [CommitLog(place, one) for one in ([store_id] if store_id else stores_in(place))]
    for log in logs:
        log.look()
    if len(logs) > 1:
        logs = [one for one in logs if one.head.number or own_archives(place, one.store_id)]
    check_single_store(place, [one.store_id for one in logs])
    return logs[0] if logs else None


def _of_own(
    place: Place, objects: Sequence[ArchiveObject]
) -> tuple[list[OffsetRange], int, dict[str, int]]:
    """The offsets in a worker's archives, the position behind them, ids of topics."""
    if not objects:
        return [], 0, {}

    def look(one: ArchiveObject, _: Callable[[], None]) -> tuple[list[OffsetRange], Manifest]:
        archive = open_lazily(place.source(one.key, one.size))
        return ranges_of(archive, one.key), archive.manifest

    ranges: list[OffsetRange] = []
    position = 0
    ids: dict[str, int] = {}
    with closing(pipelined(AT_ONCE, go_on, objects, look)) as each:
        for _, looked in each:
            mine, manifest = looked()
            ranges += mine
            ends = [manifest.last_position + _SEGMENT, *(end for _, end in manifest.segments)]
            position = max(position, *ends)
            for topic in manifest.topics:
                ids[topic.name] = max(ids.get(topic.name, 0), topic.id)
    return ranges, position, ids


def _ranges(archives: Iterable[CommittedArchive]) -> list[OffsetRange]:
    return [
        OffsetRange(q.topic, q.queue, q.first, q.last, one.key)
        for one in archives
        for q in one.queues
    ]


# --- the end --------------------------------------------------------------------------------------


def commit(
    place: Place,
    state: PlaceState,
    job: str,
    archives: Sequence[CommittedArchive],
    *,
    overwrite: bool = False,
    query: str = "",
    batch: int = -1,
) -> bool:
    """Makes a job's archives count. Returns False if they count already, from an earlier try, which
    stays as it is. Raises OffsetsTaken, JobAborted, PlaceError; then nothing of the job counts,
    once it is aborted. Raises CommitUncertain if the place can't be asked any more whether it does.
    """
    log = CommitLog(place, state.store_id)
    log.look()
    made = Commit(
        job=job, begun=state.begun, archives=sorted(archives, key=lambda one: one.key),
        query=query, batch=batch, overwrites=overwrite,
    )  # fmt: skip
    is_new = False
    while not is_new and not _counts(log, made):
        _check_not_aborted(log, made)
        _check_offsets(log, made)
        _check_there(place, state, made)
        # It has no effect if another job was first; then all is compared with that one, too.
        is_new = log.append(made)
    try:
        _tidy(log, made)
    except PlaceError as e:
        # It costs space only, and must not undo the commit.
        _log.warning("left for the next write to remove: %s", str(e))
    return is_new


def _counts(log: CommitLog, made: Commit) -> bool:
    """Whether the job, or another try of the same batch, has a commit."""
    if made.query and log.head.queries.get(made.query, -1) >= made.batch:
        return True
    return any(one.job == made.job for one in log.since(made.begun))


def _check_not_aborted(log: CommitLog, made: Commit) -> None:
    name = job_name(made.begun, made.job)
    if any(name in one.aborts for one in log.since(made.begun)):
        raise JobAborted(
            f"job {made.job} was given up before its commit: Spark had aborted it, or nothing was "
            f"written for it in {log.place.name} for a day; no message counts: run it again, in "
            "smaller jobs"
        )


def _tidy(log: CommitLog, made: Commit) -> None:
    clear_overwritten(log)
    ids = read_ids(log.place, log.store_id, TopicIds(log.head.ids, log.head.lists))
    log.note(msgspec.structs.replace(log.head, ids=dict(ids.ids), lists=ids.lists))
    remove_unnamed(log, made.begun, made.job)


def _check_there(place: Place, state: PlaceState, made: Commit) -> None:
    """Checks that nobody has removed the archives that the job has put."""
    folder = job_folder(state.store_id, state.begun, made.job)
    there = {info.key: info.size for info in place.list(folder)}
    for one in made.archives:
        if there.get(one.key) != one.size:
            raise ObjectNotFound(
                f"{place.name}/{one.key} is not there any more as it was put: somebody has removed "
                "it; nothing of the job counts: run it again",
                place.name,
            )


def _check_offsets(log: CommitLog, made: Commit) -> None:
    place, head = log.place, log.head
    own = own_archives(place, log.store_id)
    old: list[CommittedArchive] = []
    if not made.overwrites and any(map(head.may_hold, made.archives)):
        old = [archive for one in log.counting() for archive in one.archives]
    _check_positions(made.archives, old, own)
    every = [(one.key, one.size) for one in (*old, *made.archives)]
    every += [(one.key, one.size) for one in own]
    numbers = {key: number for number, (key, _) in enumerate(every)}
    pool = OpenArchives(lambda n: open_lazily(place.source(*every[n])), OPEN_BYTES)
    others = [*_ranges(old), *_of_own(place, own)[0]]
    twice = first_duplicate(_ranges(made.archives), others, lambda key: pool.get(numbers[key]))
    if twice is None:
        return
    mine = {one.key for one in made.archives}
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
    """Checks that no two archives begin at one position: only one would be taken for good."""
    known = {one.first_position: one.key for one in old} | {one.position: one.key for one in own}
    for one in archives:
        before = known.setdefault(one.first_position, one.key)
        if before != one.key:
            raise OffsetsTaken(
                f"{one.key} begins at position {one.first_position}, and so does {before}: another "
                "job has written there meanwhile, or the same rows were written twice; nothing of "
                "the job counts: run it again, or leave the column position out"
            )
