"""The gatherer: the calls of all doors, made together, and in the loop only if they can't wait.

The idea: each door decodes its requests in the loop, and hands them to the gatherer of the store,
which all doors share. The calls of one turn of the loop become one `put_batch`, one `ack_batch` and
so on, by a lane for each kind (`serve.lanes`). Most puts, acks and pops have nothing to wait for,
and the store makes these at once; all other calls are made by threads. A pop that finds nothing and
waits becomes a poll, which costs no thread (`api.loop_pops`).

The contract with doors: all methods are called in the loop's thread, and return at
once, most of them with an open call, to be awaited or given a callback
(`serve.replies.open_calls`). It has the result of the store's call of that name, or raises the
error that this call would have raised.

- A gathered call gives what it would give alone: an illegal message fails its own `put` and no
  other; a put of several messages is all or nothing.
- Puts are written in the order in which they came, and so are acks; a pop may overtake a put.
- An open call may be cancelled. A pop is undone then: what it took, or takes meanwhile, is given
  back without counting as an attempt, unless it has an `attempt_id`. Any other call may be made or
  not.
- Flow control: a put holds the bytes that its caller states until it has ended. A door asks for
  `room` before it reads more from its connections, and waits if that is a future.
- Reads and pops whose replies may be large begin when their connection's room for replies lets
  them (`serve.replies.reply_room`). A door holds there what it was given, until its client has it.

Invariants: no call that waits for another thread, for a sync, or for a read of an archive runs in
the loop's thread; of the messages that doors put, `QUEUED_MAX` bytes at most wait here, and one
call of each connection more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby
from typing import Any, Final, NamedTuple, TypeVar

from kvstore.api.loop_pops import Bell, Look, Looked, LoopPops
from kvstore.api.store import Store
from kvstore.api.topics_part import TopicsPart
from kvstore.core.popping.receipts import Popped, body_bytes
from kvstore.errors import CallerError, StoreClosed, StoreError
from kvstore.message import Message, PutResult
from kvstore.pop.ack import AckResult
from kvstore.pop.pop import Poll
from kvstore.pop.popped import INVISIBLE_DEFAULT, check_wait
from kvstore.read.sql import SqlFilter
from kvstore.serve.lanes import LATER, Lane
from kvstore.serve.metrics.server_counts import GATHERED, ServerCounts
from kvstore.serve.replies.open_calls import OpenCall
from kvstore.serve.replies.reply_room import SHARE, ReplyRoom, ReplyRooms, Turn
from kvstore.serve.tier_jobs import TierJobs

QUEUED_MAX: Final = 64 << 20
"""Bytes of messages that wait to be put, at which doors are to stop reading."""
_LANE_THREADS: Final = 12
_CALL_THREADS: Final = 16

T = TypeVar("T")
_log: Final = logging.getLogger("kvmq.serve")
Changed = tuple[str, float | None, bool]
"""A receipt, the seconds and `gives_back` of `Store.change_invisible`."""
First = tuple[Bell, ReplyRoom, tuple[Any, ...]]
"""A pop's first look: its bell, its room, and the arguments of `LoopPops.first_look`."""


class Seen(NamedTuple):
    """A look that was made within a room, and the bytes that it found; None: there was no room."""

    room: ReplyRoom
    size: int
    looked: Looked | None


class Gatherer:
    """The calls of a store for the doors of a server; see the module. It is made in the loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.counts = counts = ServerCounts()
        """The server's calls and connections, for its metrics."""
        self.rooms = ReplyRooms()
        """The room for replies of the doors' connections."""
        self._own_room = ReplyRoom(self.rooms, lambda: None)
        """For pops of nobody's connection: nothing is held there."""
        self.tier_jobs: TierJobs | None = None
        """Does the work of tiering that clients ask for, if there is one."""
        self.loop = self._loop = loop = asyncio.get_running_loop()
        self._lane_threads = ThreadPoolExecutor(_LANE_THREADS, "kvmq-lane")
        self._call_threads = ThreadPoolExecutor(_CALL_THREADS, "kvmq-call")
        self._queued = 0
        self._no_room: list[asyncio.Future[None]] = []
        self.is_ending = False
        """Whether the server ends: no pop is taken, and calls of many steps give up."""
        self._polls: set[asyncio.Task[list[Popped]]] = set()
        self._calls: set[asyncio.Future[Any]] = set()
        self._giving = 0
        self._behind: list[Callable[[], None]] = []
        lane = partial(Lane, loop, self._lane_threads, released=self._release, around=self._give)
        told = counts.gathered
        puts, acks, pops = told("put_batch"), told("ack_batch"), partial(self._noted, told("pop"))
        self._puts: Lane = lane(self._put_all, now=self._put_now, ordered=True, told=puts)
        self._acks: Lane = lane(self._ack_all, now=self._ack_now, ordered=True, told=acks)
        self._changes: Lane = lane(self._change_all, ordered=True, told=told("change_invisible"))
        self._firsts: Lane = lane(
            self._look_first, now=self._pop_now, now_max=8, count_max=64, told=pops
        )
        self._looks: Lane = lane(_look_all, count_max=64, told=pops)
        self._pops = LoopPops(store, loop)

    # --- calls ---

    def put(self, messages: Sequence[Message], size: int) -> OpenCall[list[PutResult]]:
        """Puts messages, all or none; see `Store.put_batch`. `size` is about the bytes that they
        take in memory.
        """
        self._queued += size
        return self._puts.join(messages, size)

    def put_read(
        self, read: Callable[[], Sequence[Message]], size: int
    ) -> OpenCall[list[PutResult]]:
        """As `put`, of messages that are read first, by the thread that puts them."""
        return self.put_in_turn(lambda: self._store.put_batch(read()), size)

    def put_in_turn(self, put: Callable[[], T], size: int) -> OpenCall[T]:
        """Makes another kind of put in its turn among the puts; `size` as above."""
        self._queued += size
        return self._puts.join(put, size)

    def ack(self, receipts: Sequence[str]) -> OpenCall[list[AckResult]]:
        """See `Store.ack_batch`: for each receipt True, or the error."""
        return self._acks.join(receipts)

    def change_invisible(
        self, receipt: str, invisible_for: float | None = None, *, gives_back: bool = False
    ) -> OpenCall[str]:
        """See `Store.change_invisible`."""
        return self._changes.join((receipt, invisible_for, gives_back))

    def pop(
        self,
        group: str,
        topic: str | Sequence[str],
        limit: int = 1,
        invisible_for: float = INVISIBLE_DEFAULT,
        wait: float = 0.0,
        filter: str | SqlFilter | None = None,
        queue: int | None = None,
        *,
        max_bytes: int | None = None,
        attempt_id: str | None = None,
        room: ReplyRoom | None = None,
    ) -> OpenCall[list[Popped]]:
        """See `Store.pop`. While the server ends, pops that wait get the messages there are, or
        none, and a new pop is `StoreClosed`.
        """
        call: OpenCall[list[Popped]] = OpenCall(self._loop)
        if self.is_ending:
            call.set_exception(StoreClosed("the server is ending; it hands out nothing more"))
            return call
        asked = group, topic, wait, limit, max_bytes, invisible_for, queue, filter, attempt_id
        first = Bell(self._loop), self._own_room if room is None else room, asked
        self._look_for(call, first, attempt_id is not None)
        return call

    def call(self, method: str, *given: Any, **named: Any) -> OpenCall[Any]:
        """Makes any other call of the store, by its name, in a thread of its own."""
        return self.call_by(method, partial(getattr(self._store, method), *given, **named))

    def call_of(self, part: TopicsPart, method: str, *given: Any, **named: Any) -> OpenCall[Any]:
        """As `call`, of a part of the store."""
        return self.call_by(method, partial(getattr(part, method), *given, **named))

    def call_by(self, method: str, work: Callable[[], T]) -> OpenCall[T]:
        """Does work that makes a call of the store, which is counted as that one."""
        call = self.run(work)
        call.add_done_callback(partial(self._called, method))
        return call

    def _called(self, method: str, call: OpenCall[Any]) -> None:
        if not call.cancelled():
            self.counts.called(GATHERED, method, call.exception())

    def run(self, work: Callable[[], T]) -> OpenCall[T]:
        """Does any other work with the store in a thread of its own."""
        future = self._loop.run_in_executor(self._call_threads, work)
        self._calls.add(future)
        call: OpenCall[T] = OpenCall(self._loop)
        future.add_done_callback(partial(self._ran, call))
        call.add_done_callback(partial(_cancel_too, future))
        return call

    def _ran(self, call: OpenCall[T], future: asyncio.Future[T]) -> None:
        self._calls.discard(future)
        error = None if future.cancelled() else future.exception()
        if call.done():
            return
        if future.cancelled():
            call.cancel()
        elif error is not None:
            call.set_exception(error)
        else:
            call.set_result(future.result())

    # --- the end of a step ---

    def behind(self, work: Callable[[], None]) -> None:
        """Does work when the step is over whose results are given out, or in the loop's next turn
        if that is no time of a step: for doors that write what a step brought at once.
        """
        if self._giving:
            self._behind.append(work)
        else:
            self._loop.call_soon(work)

    def _give(self, give: Callable[[], None]) -> None:
        """Around giving out the results of a step."""
        self._giving += 1
        try:
            give()
        finally:
            self._giving -= 1
            if not self._giving:
                works, self._behind = self._behind, []
                for work in works:
                    work()

    # --- flow control ---

    def room(self) -> asyncio.Future[None] | None:
        """None if there is room for more messages; else a future that is done when there is."""
        if self._queued < QUEUED_MAX:
            return None
        self._no_room.append(self._loop.create_future())
        return self._no_room[-1]

    def _release(self, size: int) -> None:
        self._queued -= size
        if self._queued <= QUEUED_MAX // 2 and self._no_room:
            waiting, self._no_room = self._no_room, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    # --- pops ---

    async def _look(
        self, room: ReplyRoom, poll: Poll, look: Look, abandoned: Callable[[Looked], None]
    ) -> Looked:
        """A look of a pop that waits. While it has no room, it stands in nobody's way."""
        turn: Turn | None = None
        try:
            while (looked := await self._look_within(room, look, abandoned)) is None:
                poll.end()
                if turn is not None:
                    turn.end()
                has_room: asyncio.Future[None] = self._loop.create_future()
                turn = room.ask(SHARE, partial(_wake, has_room))
                await has_room
            return looked
        finally:
            if turn is not None:
                turn.end()

    async def _look_within(
        self, room: ReplyRoom, look: Look, abandoned: Callable[[Looked], None]
    ) -> Looked | None:
        gone = partial(_abandon, abandoned)
        call: OpenCall[Seen] = self._looks.join(partial(_seen, room, look), abandoned=gone)
        try:
            return (await call).looked
        except asyncio.CancelledError:
            if call.done() and not call.cancelled() and call.exception() is None:
                # The look had ended, and this turn of the loop would have passed its result on.
                self._lane_threads.submit(gone, call.result())
            raise

    def _look_for(
        self, call: OpenCall[list[Popped]], first: First, keep: bool, turn: Turn | None = None
    ) -> None:
        """Begins a pop, or begins it again when there is room for it: then it has a turn."""
        gone = partial(_abandon, partial(self._pops.abandon, keep))
        looked = self._firsts.join(first, abandoned=gone)
        looked.add_done_callback(partial(self._looked, call, first, keep, turn))
        call.add_done_callback(partial(_cancel_too, looked))

    def _looked(
        self,
        call: OpenCall[list[Popped]],
        first: First,
        keep: bool,
        turn: Turn | None,
        looked: OpenCall[Seen],
    ) -> None:
        """Goes on with a pop that has looked for the first time."""
        try:
            if not looked.cancelled():
                self._go_on(call, first, keep, looked)
        finally:
            if turn is not None:
                turn.end()

    def _go_on(
        self,
        call: OpenCall[list[Popped]],
        first: First,
        keep: bool,
        looked: OpenCall[Seen],
    ) -> None:
        error = looked.exception()
        if call.done():
            if error is None and (gone := looked.result().looked) is not None:
                # Cancelled between the look and this turn.
                self._lane_threads.submit(self._pops.abandon, keep, gone)
        elif error is not None:
            call.set_exception(error)
        elif (seen := looked.result()).looked is None:
            turn = first[1].ask(SHARE, partial(self._look_for, call, first, keep))
            call.add_done_callback(lambda _: turn.end())
        else:
            found, poll = seen.looked
            if poll is None or found or self.is_ending:
                if poll is not None:
                    poll.end()
                call.set_result(found)
                return
            bell, room, _ = first
            run = partial(self._look, room, poll)
            task = self._loop.create_task(self._pops.wait(bell, poll, found, run=run, keep=keep))
            self._polls.add(task)
            task.add_done_callback(partial(self._polled, call, keep, poll))
            call.add_done_callback(partial(_cancel_too, task))

    def _polled(
        self,
        call: OpenCall[list[Popped]],
        keep: bool,
        poll: Poll,
        task: asyncio.Task[list[Popped]],
    ) -> None:
        self._polls.discard(task)
        if task.cancelled():
            poll.end()  # the task may have been cancelled before its first step
            return
        error = task.exception()
        if call.done():
            if error is None:  # cancelled between the poll's end and this turn
                self._lane_threads.submit(self._pops.abandon, keep, (task.result(), None))
        elif error is None:
            call.set_result(task.result())
        else:
            call.set_exception(error)

    # --- steps of the lanes, in the loop ---

    def _put_now(self, asked: Sequence[Any]) -> list[Any]:
        if any(map(callable, asked)):
            return [LATER] * len(asked)
        results = self._store._put_now(_together(asked))
        return [LATER] * len(asked) if results is None else _parts(results, asked)

    def _ack_now(self, asked: Sequence[list[str]]) -> list[Any]:
        results = self._store._ack_now(_together(asked))
        return [LATER] * len(asked) if results is None else _parts(results, asked)

    def _pop_now(self, asked: Sequence[First]) -> list[Any]:
        return [_outcome(self._pop_one_now, room, *given) for _, room, given in asked]

    def _pop_one_now(
        self, room: ReplyRoom, group: str, topic: str | Sequence[str], wait: Any, *asked: Any
    ) -> Any:
        check_wait(wait)
        found = None if room.is_full else self._store._pop_now(group, topic, *asked)
        return LATER if found is None else _found(room, (found, None))

    # --- steps of the lanes, in a thread ---

    def _look_first(self, asked: Sequence[First]) -> list[Any]:
        first = self._pops.first_look
        return _look_all([partial(_seen, room, first(bell, *given)) for bell, room, given in asked])

    def _put_all(self, asked: Sequence[Sequence[Message] | Callable[[], Any]]) -> list[Any]:
        """Makes puts in order: those of messages that follow one another are one."""
        results: list[Any] = []
        for is_other, run in groupby(asked, callable):
            alike: list[Any] = list(run)
            if is_other:
                results += [_outcome(put) for put in alike]
            else:
                results += self._put_together(alike)
        return results

    def _put_together(self, asked: Sequence[Sequence[Message]]) -> list[Any]:
        """Puts the messages of several calls by one put. If one of them is illegal, each half is
        put by itself, so that the illegal one ends up alone.
        """
        if len(asked) == 1:
            return [_outcome(self._store.put_batch, asked[0])]
        try:
            results = self._store.put_batch(_together(asked))
        except CallerError:
            half = len(asked) // 2
            return self._put_together(asked[:half]) + self._put_together(asked[half:])
        except StoreError as e:
            return [e] * len(asked)
        return _parts(results, asked)

    def _ack_all(self, asked: Sequence[Sequence[str]]) -> list[Any]:
        if len(asked) == 1:
            return [_outcome(self._store.ack_batch, asked[0])]
        try:
            results = self._store.ack_batch(_together(asked))
        except StoreError as e:
            return [e] * len(asked)
        return _parts(results, asked)

    def _change_all(self, asked: Sequence[Changed]) -> list[Any]:
        """Changes that follow one another and ask for the same time are one call."""
        results: list[Any] = []
        for _, run in groupby(asked, _time_asked):
            alike = list(run)
            _, seconds, gives_back = alike[0]
            change = partial(
                self._store.change_invisible_batch, invisible_for=seconds, gives_back=gives_back
            )
            found = _outcome(change, [receipt for receipt, _, _ in alike])
            results += [found] * len(alike) if isinstance(found, Exception) else found
        return results

    # --- steps of looks that were made, in the loop ---

    def _noted(self, told: Callable[[Sequence[Any]], None], results: Sequence[Any]) -> None:
        """The loop has the results of looks: the doors that get the messages hold them."""
        has_found = False
        for seen in results:
            if isinstance(seen, Seen) and seen.size:
                seen.room.found(-seen.size)
                has_found = True
        if has_found and self.rooms.is_waited_for:
            self._loop.call_soon(self.rooms.go_on)
        told([one for one in results if not isinstance(one, Seen) or one.looked is not None])

    # --- the end ---

    def end_polls(self) -> None:
        """Answers the pops that wait; from here on none is taken."""
        self.is_ending = True
        self._store._say_ending(is_ending=True)
        self._pops.end()

    async def close(self, within: float | None = None) -> None:
        """Waits for all calls that were taken, so many seconds at most, and ends the threads. Calls
        that were not made by then are cancelled; those that are being made can't be stopped, and
        their threads go on.
        """
        self.end_polls()
        try:
            async with asyncio.timeout(within):
                await self._all_made()
        except TimeoutError:
            under_way = [*self._polls, *self._calls]
            _log.error("%d calls that can't be stopped are given up", len(under_way))
            for one in under_way:
                one.cancel()
        else:
            self._store._say_ending(is_ending=False)
        self._lane_threads.shutdown(wait=False, cancel_futures=True)
        self._call_threads.shutdown(wait=False, cancel_futures=True)

    async def _all_made(self) -> None:
        if self._polls:
            await asyncio.wait(self._polls)
        for lane in (self._puts, self._acks, self._changes, self._firsts, self._looks):
            await lane.idle()
        if self._calls:
            await asyncio.wait(self._calls)


def _look_all(looks: Sequence[Callable[[], Seen]]) -> list[Any]:
    return [_outcome(look) for look in looks]


def _seen(room: ReplyRoom, look: Look) -> Seen:
    """In a thread: looks, if there is room."""
    with room.looks:
        return Seen(room, 0, None) if room.is_full else _found(room, look())


def _found(room: ReplyRoom, looked: Looked) -> Seen:
    size = body_bytes(looked[0])
    room.found(size)
    return Seen(room, size, looked)


def _abandon(abandoned: Callable[[Looked], None], seen: Seen) -> None:
    if seen.looked is not None:
        abandoned(seen.looked)


def _wake(future: asyncio.Future[None], _: Turn) -> None:
    if not future.done():
        future.set_result(None)


def _time_asked(changed: Changed) -> tuple[object, ...]:
    """The time that a change asks for, right or wrong: 1 and True are not the same."""
    _, seconds, gives_back = changed
    return type(seconds), seconds, type(gives_back), gives_back


def _outcome(call: Callable[..., Any], *given: Any) -> Any:
    """The result of a call, or its error."""
    try:
        return call(*given)
    except Exception as e:
        return e


def _together(asked: Sequence[Sequence[T]]) -> list[T]:
    """The messages or receipts of several callers, in one list."""
    return list(chain.from_iterable(asked))


def _parts(results: Sequence[T], asked: Sequence[Sequence[Any]]) -> list[Any]:
    """The results of a call that was made for several callers, for each of them."""
    parts: list[Any] = []
    at = 0
    for one in asked:
        parts.append(results[at : at + len(one)])
        at += len(one)
    return parts


def _cancel_too(other: OpenCall[Any] | asyncio.Future[Any], call: OpenCall[Any]) -> None:
    if call.cancelled():
        other.cancel()
