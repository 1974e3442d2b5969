"""A group's progress in its queues: commits, resets and lag.

The idea: an offset is the next message that a group wants; all messages below it are done. A group
that never committed in a queue begins at its `start`.

Invariants: a refused call changes nothing, and of several offsets none is set; a reset is one batch
with all other rows about the messages that are given back (`Offsets.resetting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Literal, TypeGuard

from kvstore.engine.engine import Engine
from kvstore.errors import CallerError, shown
from kvstore.message import Bounds
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.offsets import Commit, Lag
from kvstore.meta.topics import Topic
from kvstore.pop.inflight.listing import InFlightPage
from kvstore.pop.progress import GroupStats
from kvstore.record.validate import check_group, listed


def commit_offsets(
    engine: Engine, commits: Iterable[tuple[str, str, int, int]], *, sync: bool
) -> None:
    """See `Store.commit_offsets`."""
    given = listed("commits", commits)
    while not _commit_all(engine, given, sync=sync):
        pass  # another thread has just made one of the groups


def _commit_all(engine: Engine, commits: Sequence[object], *, sync: bool) -> bool:
    """Commits all, and makes the groups that are new, in one batch; False if one of those is
    there by now.
    """
    wanted: list[tuple[str, int, int, int]] = []
    ids: dict[str, int] = {}
    end = engine.reader.visible_end()
    for commit in commits:
        if not is_commit(commit):
            raise CallerError(
                f"a commit is {shown(commit)}; it must be (group, topic, queue, offset)"
            )
        group, topic, queue, offset = commit
        used = engine.topics.get(topic)
        engine.offsets.check(offset, engine.index.next_offset(used.key(queue), end))
        known = engine.groups.find(group)
        if known is None:
            check_group(group)
        else:
            ids[group] = known.id
        wanted.append((group, used.id, queue, offset))
    new = [group for group in dict.fromkeys(group for group, *_ in wanted) if group not in ids]
    known_before = [Commit(ids[g], t, q, at) for g, t, q, at in wanted if g in ids]
    # A group that nobody can find yet has no message under lock.
    with engine.popping.committing(known_before), ExitStack() as making:
        batch = engine.index.families.batch()
        made: list[GroupInfo] = []
        if new:
            making.enter_context(engine.groups.lock)
            if any(engine.groups.find(group) is not None for group in new):
                return False
            made = engine.groups.put_new(batch, [GroupConfig(name=group) for group in new])
        ids.update((info.name, info.id) for info in made)
        changes = [Commit(ids[group], topic, queue, at) for group, topic, queue, at in wanted]
        engine.offsets.commit(changes, batch, sync=sync or bool(made))
        if made:
            engine.groups.written(made)
    return True


def committed_offset(engine: Engine, group: str, topic: str, queue: int) -> int | None:
    """See `Store.committed_offset`."""
    used = engine.topics.get(topic)
    used.key(queue)
    known = engine.groups.find(group)
    return None if known is None else engine.group_progress.committed(known, used, queue)


def reset_offset(
    engine: Engine,
    group: str,
    topic: str,
    *,
    offset: int | None,
    time: int | None,
    to: Literal["begin", "end"] | None,
    queue: int | None,
) -> dict[int, int]:
    """See `Store.reset_offset`."""
    if [offset, time, to].count(None) != 2:
        raise CallerError(
            f"offset is {shown(offset)}, time {shown(time)} and to {shown(to)}; "
            "give exactly one of them"
        )
    known, used = engine.groups.get(group), engine.topics.get(topic)
    if offset is not None and queue is None and used.read_queues > 1:
        raise CallerError(
            f"an offset is of one queue, and {shown(topic)} has {used.read_queues}; say which queue"
        )
    wanted = range(used.read_queues) if queue is None else (queue,)
    if to is not None and to not in ("begin", "end"):
        raise CallerError(f"to is {shown(to)}; it must be 'begin' or 'end'")
    start = to if to is not None else time
    offsets: dict[int, int] = {}
    for number in wanted:
        bounds = engine.reader.bounds(used.key(number))
        if offset is not None:
            engine.offsets.check(offset, bounds.next_offset)
        offsets[number] = (
            _start_offset(engine, used, number, bounds, start) if offset is None else offset
        )
    _reset(engine, known, used, offsets)
    return offsets


def _reset(engine: Engine, group: GroupInfo, topic: Topic, offsets: dict[int, int]) -> None:
    batch = engine.index.families.batch()
    with ExitStack() as others:
        for resetting in engine.offsets.resetting:
            others.enter_context(resetting(batch, group, topic, offsets))
        for queue, offset in offsets.items():
            engine.offsets.put_offset(batch, group.id, topic.id, queue, offset)
        engine.index.families.write(batch, sync=True)
        engine.offsets.written()


def _start_offset(
    engine: Engine, topic: Topic, queue: int, bounds: Bounds, start: str | int | None
) -> int:
    """The offset in a queue that a start stands for."""
    if start == "begin":
        return bounds.min_offset
    if start == "end":
        return bounds.next_offset
    return engine.reader.offset_at(topic, queue, start, upper=False)  # type: ignore[arg-type]  # refused there if it is no time


def lag(engine: Engine, group: str, topic: str | None) -> list[Lag]:
    """See `Store.lag`."""
    known = engine.groups.get(group)
    topics = _topics_of(engine, known, topic)
    return [lag for used in topics for lag in _lags(engine, known, used)]


def group_stats(engine: Engine, group: str, topic: str | None) -> list[GroupStats]:
    """See `Store.group_stats`."""
    known = engine.groups.get(group)
    now = engine.config.clock.now_ms()
    topics = _topics_of(engine, known, topic)
    return [engine.group_progress.stats(known, used, now) for used in topics]


def in_flight(
    engine: Engine, group: str, topic: str | None, limit: int, after: Sequence[int] | None
) -> InFlightPage:
    """See `Store.in_flight`."""
    known = engine.groups.get(group)
    used = None if topic is None else engine.topics.get(topic)
    return engine.in_flight_list.page(known, used, limit, after)


def _topics_of(engine: Engine, group: GroupInfo, topic: str | None) -> list[Topic]:
    """The topic with a name; without one, by name all in which a group popped or committed.

    A group's own dead letters are not its work, so their topics are asked for by name: a redrive
    commits there too, and would add them to the others.
    """
    wanted = _names_of(engine, group) if topic is None else [topic]
    return [engine.topics.get(name) for name in wanted]


def topics_of(engine: Engine, group: str) -> list[str]:
    """See `Store.group_topics`."""
    return _names_of(engine, engine.groups.get(group))


def _names_of(engine: Engine, group: GroupInfo) -> list[str]:
    names = map(engine.topics.name_of, engine.offsets.topics(group.id))
    letters = group.dead_letter_topics
    return sorted(name for name in names if name is not None and name not in letters)


def _lags(engine: Engine, group: GroupInfo, topic: Topic) -> Iterable[Lag]:
    for queue in range(topic.read_queues):
        todo = engine.group_progress.todo(group, topic, queue)
        yield Lag(
            group=group.name,
            topic=topic.name,
            queue=queue,
            committed=todo.committed,
            begin=todo.bounds.min_offset,
            end=todo.bounds.next_offset,
            lag=todo.lag,
            unread=todo.unread,
            in_flight=todo.in_flight,
            passed_over=todo.passed_over,
            expired=todo.expired,
        )


def is_commit(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value has the form of a commit: group, topic, queue and offset."""
    return isinstance(value, tuple | list) and len(value) == 4
