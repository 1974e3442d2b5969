"""Lanes: calls of one kind that wait for a thread, and are made together.

The idea: a call joins its lane in the loop, and its result comes later. When the turn of the loop
is over, all calls that came in it are made in one step; while it runs, the next ones collect. So a
busy server makes few large steps, and an idle one answers at once. A thread makes the step, but for
calls that have nothing to wait for: the store makes these in the loop, or says that it can't. They
hold Python's lock all the time, so in a thread they would stop the loop as well, and cost two
switches more. In an ordered lane one step runs at a time. In another one a step that takes longer
than `_STUCK` lets the next one begin beside it.

Invariants:

- Calls of an ordered lane are made in the order in which they came.
- Each call gets its result or its error in the loop's thread.
- The result of a call that was cancelled goes to its `abandoned`, if it was made at all.
- Where a disk is so slow that a step in the loop takes longer than `_SLOW`, the threads make all
  steps of the next second.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Final

from kvstore.errors import StoreClosed, StoreError
from kvstore.serve.replies.open_calls import OpenCall

_STUCK: Final = 0.005
"""Seconds after which a step is taken to wait for a disk."""
_SIDE_BY_SIDE: Final = 8
"""Steps of one lane that run at a time."""
_SLOW: Final = 0.1
_AFTER_SLOW: Final = 1.0
"""Seconds of a step in the loop, and seconds behind it without another."""
_NOW_BYTES: Final = 256 << 10
"""Bytes of the calls of a step in the loop."""
LATER: Final = object()
"""In the place of a result: the call may have to wait, so a thread is to make it."""


class Joined:
    """A call that joined a lane: what it asks for, the bytes that it holds, and its result."""

    __slots__ = ("abandoned", "asked", "call", "size")

    def __init__(
        self,
        asked: Any,
        size: int,
        call: OpenCall[Any],
        abandoned: Callable[[Any], None] | None,
    ) -> None:
        self.asked = asked
        self.size = size
        self.call = call
        self.abandoned = abandoned


Step = Callable[[Sequence[Any]], list[Any]]
"""Makes calls, given what they ask for; their results, or errors, in order. It does not raise."""


class Lane:
    """The calls of one kind; see the module. A step makes up to `count_max` calls, and those beyond
    the first only as long as all together hold up to `bytes_max`. `now` is the step in the loop, of
    up to `now_max` calls: it waits for nothing, and has `LATER` in the place of results that have
    to be waited for, in an ordered lane behind all others. `released` is told the bytes of calls
    that have ended, `told` the results of each step. `around` is called with a function that gives
    out the results of a step.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        step: Step,
        released: Callable[[int], None],
        *,
        now: Step | None = None,
        now_max: int = 64,
        ordered: bool = False,
        count_max: int = 1024,
        bytes_max: int = 4 << 20,
        told: Callable[[Sequence[Any]], None] = lambda results: None,
        around: Callable[[Callable[[], None]], None] = lambda give: give(),
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._step = step
        self._released = released
        self._now = now
        self._now_max = now_max
        self._not_before = 0.0
        """The loop's time until which no step is made in the loop."""
        self._ordered = ordered
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._told = told
        self._around = around
        self._waiting: deque[Joined] = deque()
        self._running = 0
        self._begun_at = 0.0
        self._is_due = False
        self._has_timer = False
        self._idle: list[asyncio.Future[None]] = []

    def join(
        self, asked: Any, size: int = 0, abandoned: Callable[[Any], None] | None = None
    ) -> OpenCall[Any]:
        """Adds a call; called in the loop's thread."""
        call: OpenCall[Any] = OpenCall(self._loop)
        self._waiting.append(Joined(asked, size, call, abandoned))
        if not self._running:
            if not self._is_due:
                self._is_due = True
                # Behind all that is ready in this turn of the loop.
                self._loop.call_soon(self._begin)
        else:
            self._watch()
        return call

    async def idle(self) -> None:
        """Waits until no call is left."""
        while self._waiting or self._running:
            future = self._loop.create_future()
            self._idle.append(future)
            await future

    def _begin(self) -> None:
        self._is_due = False
        if self._ordered and self._running:
            return  # its end begins the next
        self._begun_at = self._loop.time()
        if self._now is None or self._running or self._begun_at < self._not_before:
            joined = self._take(self._count_max, self._bytes_max)
        else:
            joined = self._make_now(self._now)
        if not joined:
            return
        self._running += 1
        try:
            self._threads.submit(self._run, joined)
        except RuntimeError:
            self._ended(joined, [StoreClosed("the server has ended")] * len(joined))
        else:
            self._watch()

    def _watch(self) -> None:
        """Has calls that wait for a step under way looked at again, if they need not wait for its
        end.
        """
        if self._waiting and not self._ordered and not self._has_timer:
            self._has_timer = True
            self._loop.call_later(_STUCK, self._look)

    def _make_now(self, step: Step) -> list[Joined]:
        """Makes calls in the loop; returns those that are left to a thread."""
        joined = self._take(self._now_max, _NOW_BYTES)
        if not joined or joined[0].size > _NOW_BYTES:
            return joined
        results = _made(step, joined)
        now = self._loop.time()
        if now - self._begun_at >= _SLOW:
            self._not_before = now + _AFTER_SLOW
        left = [one for one, found in zip(joined, results, strict=True) if found is LATER]
        if left:
            done = [at for at, found in enumerate(results) if found is not LATER]
            self._settle([joined[at] for at in done], [results[at] for at in done])
            return left
        self._settle(joined, results)
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin)
        return left

    def _look(self) -> None:
        """Begins another step if calls wait and the steps under way seem to be stuck."""
        self._has_timer = False
        if not self._waiting:
            return
        if self._running < _SIDE_BY_SIDE and self._loop.time() - self._begun_at >= _STUCK:
            self._begin()
        self._watch()

    def _take(self, count_max: int, bytes_max: int) -> list[Joined]:
        taken: list[Joined] = []
        size = 0
        while self._waiting and len(taken) < count_max:
            size += self._waiting[0].size
            if taken and size > bytes_max:
                break
            one = self._waiting.popleft()
            if one.call.cancelled():
                self._released(one.size)
            else:
                taken.append(one)
        return taken

    def _run(self, joined: list[Joined]) -> None:
        """In a thread: one step."""
        results = _made(self._step, joined)
        with suppress(RuntimeError):  # the loop is gone, and its callers with it
            self._loop.call_soon_threadsafe(self._ended, joined, results)

    def _ended(self, joined: list[Joined], results: list[Any]) -> None:
        self._running -= 1
        if self._waiting:
            self._begin()
        self._settle(joined, results)

    def _settle(self, joined: list[Joined], results: list[Any]) -> None:
        """Gives each call its result."""
        self._told(results)
        self._around(partial(self._give, joined, results))
        if not self._waiting and not self._running:
            for idle in self._idle:
                if not idle.done():
                    idle.set_result(None)
            self._idle.clear()

    def _give(self, joined: list[Joined], results: list[Any]) -> None:
        for one, result in zip(joined, results, strict=True):
            if one.size:
                self._released(one.size)
            if one.call.cancelled():
                if one.abandoned is not None and not isinstance(result, BaseException):
                    self._threads.submit(one.abandoned, result)
            elif isinstance(result, BaseException):
                # Each caller raises an error of its own: a shared one would collect the tracebacks
                # of all.
                one.call.set_exception(
                    copy.copy(result) if isinstance(result, StoreError) else result
                )
            else:
                one.call.set_result(result)


def _made(step: Step, joined: list[Joined]) -> list[Any]:
    """The results of a step."""
    try:
        return step([one.asked for one in joined])
    except BaseException as e:
        return [e] * len(joined)
