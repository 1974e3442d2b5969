"""Calls about groups' progress: committing, resetting, history and lag.

The idea: an offset is the next message a group wants; all below is done. A group that never
committed in a queue begins at its `start`.

Invariants: a refused call changes nothing, and of several offsets none is set; a reset is one batch
with all other rows about the messages that are given back (`Offsets.resetting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Literal, TypeGuard

from kvstore.api.parts import Parts, listed
from kvstore.errors import (
    CallerError,
    shown,
)
from kvstore.message import Bounds
from kvstore.meta.groups import GroupConfig, GroupInfo
from kvstore.meta.history import OffsetCommit
from kvstore.meta.offsets import Commit, Lag
from kvstore.meta.topics import Topic
from kvstore.pop.group_stats import committed_of, todo_of
from kvstore.record.validate import check_group


class OffsetCalls(Parts):
    """Calls about groups' offsets."""

    def commit_offset(
        self, group: str, topic: str, queue: int, offset: int, *, sync: bool = False
    ) -> None:
        """Say that a group wants `offset` of a queue next. A group that is new is made. `InFlight`
        if the group has popped messages of that queue and not acked them.

        Returns when the commit outlives a crash of the process, with `sync` when it is on the disk;
        without, that is so after `StoreConfig.offset_sync_interval`."""
        self.commit_offsets([(group, topic, queue, offset)], sync=sync)

    def commit_offsets(
        self, commits: Iterable[tuple[str, str, int, int]], *, sync: bool = False
    ) -> None:
        """Commit (group, topic, queue, offset) of each, all or none, in one batch; of two for a
        queue the later one counts. See `commit_offset`.

        >>> store.commit_offsets([("billing", "orders", 3, 120)], sync=True)  # doctest: +SKIP
        """
        self._log.check_writable()
        given = listed("commits", commits)
        while not self._commit_all(given, sync=sync):
            pass  # another thread has just made one of the groups

    def _commit_all(self, commits: Sequence[object], *, sync: bool) -> bool:
        """Commits all, and makes the groups that are new, in one batch; False if one of those is
        there by now.
        """
        wanted: list[tuple[str, int, int, int]] = []
        ids: dict[str, int] = {}
        end = self._reader.visible_end()
        for commit in commits:
            if not is_commit(commit):
                raise CallerError(
                    f"a commit is {shown(commit)}; it must be (group, topic, queue, offset)"
                )
            group, topic, queue, offset = commit
            used = self._topics.get(topic)
            self._offsets.check(offset, self._index.next_offset(used.key(queue), end))
            known = self._groups.find(group)
            if known is None:
                check_group(group)
            else:
                ids[group] = known.id
            wanted.append((group, used.id, queue, offset))
        new = [group for group in dict.fromkeys(group for group, *_ in wanted) if group not in ids]
        known_before = [Commit(ids[g], t, q, at) for g, t, q, at in wanted if g in ids]
        # A group that nobody can find yet has no message under lock.
        with self._popping.committing(known_before), ExitStack() as making:
            batch = self._index.families.batch()
            made: list[GroupInfo] = []
            if new:
                making.enter_context(self._groups.lock)
                if any(self._groups.find(group) is not None for group in new):
                    return False
                made = self._groups.stage(batch, [GroupConfig(name=group) for group in new])
            ids.update((info.name, info.id) for info in made)
            changes = [Commit(ids[group], topic, queue, at) for group, topic, queue, at in wanted]
            self._offsets.commit(changes, batch, sync=sync or bool(made))
            if made:
                self._groups.written(made)
        return True

    def committed_offset(self, group: str, topic: str, queue: int) -> int | None:
        """The offset a group wants next, all below being done; None if it never committed one."""
        self._check_open()
        used = self._topics.get(topic)
        used.key(queue)
        known = self._groups.find(group)
        if known is None:
            return None
        flying = self._flying(known.id, used.id)
        return committed_of(self._reader, self._offsets, known, used, queue, flying)

    def offset_history(self, group: str, topic: str, queue: int) -> list[OffsetCommit]:
        """The committed offsets of a queue, each with the time from which it held, oldest first.
        The last one is `committed_offset` now, unless that has held for longer than
        `StoreConfig.offset_history_for`.

        The last offset of each `StoreConfig.offset_history_interval` is kept. The progress of a
        group that pops is sampled at that interval, and when it is asked for here; a store that is
        open read-only shows what was sampled.
        """
        self._check_open()
        used = self._topics.get(topic)
        bounds = self._reader.bounds(used.key(queue))
        known = self._groups.get(group)
        if self._log.writable:
            self._progress.sample_queue(known.id, used.id, queue)
        return self._offsets.history(known.id, used.id, queue, bounds)

    def reset_offset(
        self,
        group: str,
        topic: str,
        *,
        offset: int | None = None,
        time: int | None = None,
        to: Literal["begin", "end"] | None = None,
        queue: int | None = None,
    ) -> dict[int, int]:
        """Set where a group goes on in a topic, durably: at an offset, at the first message stored
        at or after a time (ms since the epoch), or at the beginning or the end. Of all queues, or
        of one; an offset is of one queue, so with it `queue` has to be given if there are more.

        Messages the group has under lock there are given up. Returns the new offsets by queue;
        `GroupNotFound`, `TopicNotFound`, `QueueNotFound`.

        >>> store.reset_offset("billing", "orders", to="begin")  # doctest: +SKIP
        {0: 0, 1: 0, 2: 17, 3: 0}
        """
        self._log.check_writable()
        if [offset, time, to].count(None) != 2:
            raise CallerError(
                f"offset is {shown(offset)}, time {shown(time)} and to {shown(to)}; "
                "give exactly one of them"
            )
        known, used = self._groups.get(group), self._topics.get(topic)
        if offset is not None and queue is None and used.read_queues > 1:
            raise CallerError(
                f"an offset is of one queue, and {shown(topic)} has "
                f"{used.read_queues}; say which queue"
            )
        wanted = range(used.read_queues) if queue is None else (queue,)
        if to is not None and to not in ("begin", "end"):
            raise CallerError(f"to is {shown(to)}; it must be 'begin' or 'end'")
        start = to if to is not None else time
        offsets: dict[int, int] = {}
        for number in wanted:
            bounds = self._reader.bounds(used.key(number))
            if offset is not None:
                self._offsets.check(offset, bounds.next_offset)
            offsets[number] = self._at(used, number, bounds, start) if offset is None else offset
        self._reset(known, used, offsets)
        return offsets

    def _reset(self, group: GroupInfo, topic: Topic, offsets: dict[int, int]) -> None:
        batch = self._index.families.batch()
        with ExitStack() as others:
            for resetting in self._offsets.resetting:
                others.enter_context(resetting(batch, group, topic, offsets))
            for queue, offset in offsets.items():
                self._offsets.stage(batch, group.id, topic.id, queue, offset)
            self._index.families.write(batch, sync=True)
            self._offsets.written()

    def _at(self, topic: Topic, queue: int, bounds: Bounds, start: str | int | None) -> int:
        """The offset in a queue that a start stands for."""
        if start == "begin":
            return bounds.min_offset
        if start == "end":
            return bounds.next_offset
        return self._reader.offset_at(topic, queue, start, upper=False)  # type: ignore[arg-type]  # refused there if it is no time

    def lag(self, group: str, topic: str | None = None) -> list[Lag]:
        """How much a group has still to do in every queue of a topic, and how far it is; without a
        topic, of all in which it ever popped or committed an offset. By topic and queue;
        `GroupNotFound`, `TopicNotFound`.
        """
        self._check_open()
        known = self._groups.get(group)
        if topic is not None:
            names = [topic]
        else:
            found = map(self._topics.name_of, self._offsets.topics(known.id))
            names = sorted(name for name in found if name is not None)
        return [lag for name in names for lag in self._lags(known, self._topics.get(name))]

    def _lags(self, group: GroupInfo, topic: Topic) -> Iterable[Lag]:
        flying = self._flying(group.id, topic.id)
        for queue in range(topic.read_queues):
            todo = todo_of(self._reader, self._offsets, group, topic, queue, flying)
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
            )


def is_commit(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value has the form of a commit: group, topic, queue and offset."""
    return isinstance(value, tuple | list) and len(value) == 4
