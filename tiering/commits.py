"""Commits: what jobs (such as Spark's) put into a place beside archives, and what of it counts.

The idea: many tasks make archives of one job, each of them perhaps several times; none of these
counts before one small object, put on condition, names them all. So a job is there whole or not at
all, whoever died when. Topics have ids in archives, which tasks that know nothing of each other
must give alike: lists of ids are put on condition as well, one behind the other.

Invariants: an archive in a job's folder counts if a commit that is not replaced names it, and else
not; commits and lists are never changed; an id is given to one topic, and a topic has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import msgspec

from kvstore.errors import FormatError, FormatTooNew
from tiering.errors import ObjectExists, ObjectNotFound, PlaceError
from tiering.objectnames import (
    COMMIT_NAME,
    IDS_NAME,
    JOB_NAME,
    OF_JOB,
    commit_key,
    ids_key,
    job_folder,
    jobs_prefix,
)
from tiering.place import Place

FORMAT: Final = 1
DAY: Final = 86_400_000
"""Ms after which what a job has left, and not committed, is taken for a dead job's."""
AT_ONCE: Final = 16
"""Small objects that are read at once: a bucket takes its time for each."""
_LOOKS_MAX: Final = 5


class HeldRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets of a queue that an archive has, from `first` to `last` but for gaps."""

    topic: str
    queue: int
    first: int
    last: int


class CommittedArchive(msgspec.Struct, frozen=True, kw_only=True):
    """An archive that a commit names: its name in the place, bytes, crc32c and what it holds.
    Positions are of its first record and behind its last one.
    """

    key: str
    size: int
    crc: int
    messages: int
    first_position: int
    end_position: int
    queues: list[HeldRange]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What a job made. `replaces` are the jobs that do not count any more because of it; `query`
    and `batch` say of which batch of a stream it is.
    """

    job: str
    archives: list[CommittedArchive]
    replaces: list[str] = []
    query: str = ""
    batch: int = -1
    format: int = FORMAT


def encode_commit(commit: Commit) -> bytes:
    """A commit as it is put: JSON, the same for the same commit."""
    return msgspec.json.encode(commit, order="sorted")


def decode_commit(data: bytes, name: str) -> Commit:
    """The inverse. Raises FormatError, FormatTooNew."""
    try:
        found = msgspec.json.decode(data, type=Commit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise FormatError(f"{name} is no commit of a job: {e}; remove it to go without") from e
    if found.format > FORMAT:
        raise FormatTooNew(
            f"{name} has format {found.format}, this version of kvmq reads up to {FORMAT}; use a "
            "newer kvmq",
            found.format,
            FORMAT,
        )
    return found


def read_commits(place: Place, keys: Iterable[str]) -> list[Commit] | None:
    """The commits that count of those with these names, by job; None if one of them is gone by now:
    list again. Raises FormatError, FormatTooNew, PlaceError.
    """
    names = sorted(keys)
    if not names:
        return []

    def read(key: str) -> Commit | None:
        try:
            data = place.read(key, 0, place.size(key))
        except ObjectNotFound:
            return None
        return decode_commit(data, f"{place.name}/{key}")

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kvmq-commits") as pool:
        found = list(pool.map(read, names))
    there = [one for one in found if one is not None]
    if len(there) < len(found):
        return None
    replaced = {job for one in there for job in one.replaces}
    return [one for one in there if one.job not in replaced]


def commits_of(place: Place, store_id: str) -> list[Commit]:
    """The commits of a store's jobs that count. Raises as `read_commits`."""
    for _ in range(_LOOKS_MAX):
        names = [i.key for i in place.list(f"{store_id}/job-") if COMMIT_NAME.fullmatch(i.key)]
        found = read_commits(place, names)
        if found is not None:
            return found
    return []


def jobs_there(place: Place, store_id: str, jobs: Collection[str]) -> set[str]:
    """Those of some jobs that have a commit, whether or not it counts."""
    if not jobs:
        return set()
    names = (COMMIT_NAME.fullmatch(info.key) for info in place.list(jobs_prefix(store_id)))
    return {name[2] for name in names if name is not None} & set(jobs)


def committed(place: Place, store_id: str, job: str) -> Commit | None:
    """The commit of a job, None if there is none."""
    key = commit_key(store_id, job)
    try:
        return decode_commit(place.read(key, 0, place.size(key)), f"{place.name}/{key}")
    except ObjectNotFound:
        return None


# --- what goes ------------------------------------------------------------------------------------


def remove_replaced(place: Place, store_id: str, replaced: Iterable[Commit]) -> None:
    """Remove what does not count any more, each commit behind its archives."""
    for one in replaced:
        for archive in one.archives:
            place.delete(archive.key)
        place.delete(commit_key(store_id, one.job))


def remove_unnamed(place: Place, store_id: str, job: str, before: int | None = None) -> list[str]:
    """Remove what a job has put and its commit, if there is one, does not name; of that what was
    written before a time (ms), if one is given. Returns the names.
    """
    found = committed(place, store_id, job)
    named = {one.key for one in found.archives} if found is not None else set()
    removed = []
    folder = job_folder(store_id, job)
    for info in place.list(folder):
        if info.key not in named and (before is None or info.modified < before):
            place.delete(info.key)
            removed.append(info.key)
    for info in place.leftovers(folder):
        if before is None or info.modified < before:
            with suppress(PlaceError):
                place.remove_leftover(info.key)
    return removed


def sweep(place: Place, now: int, age: int = DAY) -> list[str]:
    """Remove what dead jobs of any store have left in a place: archives that nothing names, and
    puts of such that were cut off, last written so many ms ago; and what a commit says it has
    replaced. Returns the names, but for those of puts.
    """
    jobs: dict[tuple[str, str], bool] = {}
    stores: set[str] = set()
    for info in place.list(""):
        made, commit_ = JOB_NAME.fullmatch(info.key), COMMIT_NAME.fullmatch(info.key)
        if made is not None and info.modified < now - age:
            jobs[made[1], made[2]] = True
        if commit_ is not None:
            stores.add(commit_[1])
    for info in place.leftovers():
        # A job may have died before any of its archives had got its name.
        left = OF_JOB.search(info.key)
        if left is not None and info.modified < now - age:
            jobs[left[1], left[2]] = True
    removed = []
    for store_id in sorted(stores):
        removed += _sweep_replaced(place, store_id)
    for store_id, job in sorted(jobs):
        removed += remove_unnamed(place, store_id, job, now - age)
    return removed


def _sweep_replaced(place: Place, store_id: str) -> list[str]:
    keys = [i.key for i in place.list(jobs_prefix(store_id)) if COMMIT_NAME.fullmatch(i.key)]
    every: dict[str, Commit] = {}
    for key in keys:
        with suppress(ObjectNotFound):
            found = decode_commit(place.read(key, 0, place.size(key)), f"{place.name}/{key}")
            every[found.job] = found
    gone = {job for one in every.values() for job in one.replaces} & every.keys()
    remove_replaced(place, store_id, [every[job] for job in sorted(gone)])
    return [commit_key(store_id, job) for job in sorted(gone)]


# --- ids of topics --------------------------------------------------------------------------------


def read_ids(place: Place, store_id: str) -> tuple[dict[str, int], int]:
    """The ids that topics have in the archives of a store's jobs, and how many lists say so."""
    ids: dict[str, int] = {}
    number = 0
    names = sorted(i.key for i in place.list(f"{store_id}/topics-") if IDS_NAME.fullmatch(i.key))
    number = len(names)
    for key in names:
        ids |= _read_list(place, key)
    # A list of names is a hint: what was just put may not be among it.
    while True:
        try:
            ids |= _read_list(place, ids_key(store_id, number))
        except ObjectNotFound:
            return ids, number
        number += 1


def _read_list(place: Place, key: str) -> dict[str, int]:
    data = place.read(key, 0, place.size(key))
    try:
        return msgspec.json.decode(data, type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise FormatError(f"{place.name}/{key} is no list of topic ids: {e}") from e


def take_ids(
    place: Place, store_id: str, names: Sequence[str], known: dict[str, int] | None = None
) -> dict[str, int]:
    """The ids of topics by name, given to those that have none; `known` are ids that they have to
    have, and that no other may get. Raises FormatError, PlaceError.
    """
    given = known or {}
    while True:
        ids, number = read_ids(place, store_id)
        missing = [name for name in dict.fromkeys(names) if name not in ids]
        if not missing:
            return {name: ids[name] for name in names}
        following = max([0, *ids.values(), *given.values()]) + 1
        new: dict[str, int] = {}
        for name in missing:
            new[name] = given.get(name) or following
            following += new[name] == following
        try:
            place.put(ids_key(store_id, number), msgspec.json.encode(new, order="sorted"))
        except ObjectExists:
            continue  # another task was first: what it gave holds
