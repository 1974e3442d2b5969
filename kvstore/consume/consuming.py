"""The settings of a consumer, and its figures; the call that takes them.

The idea: the call `consume` is stated once, with each setting's name, default and meaning, for
threads and asyncio, embedded and connected. Its arguments are checked once, and go on as one value.

Invariant: a `Consuming` that exists is right as far as that can be known without the store.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

from kvstore.errors import CallerError, shown
from kvstore.pop.popped import INVISIBLE_DEFAULT, INVISIBLE_MAX
from kvstore.read.sql import SqlFilter
from kvstore.record.validate import listed

CONCURRENCY_MAX: Final = 4096
_INVISIBLE_MIN: Final = 0.1
"""Seconds: a lock is renewed at each third of its time."""
H = TypeVar("H")
"""A handler: a function of a message."""
C = TypeVar("C")
"""A consumer that runs such handlers."""


class Consuming(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a consumer, right ones (`CallerError`); see `Consumes.consume`."""

    group: str
    topics: str | tuple[str, ...]
    concurrency: int
    prefetch: int
    invisible_for: float
    retry_in: float | None
    time_limit: float | None
    filter: str | SqlFilter | None
    queue: int | None
    count: int | None
    until_empty: bool

    def __post_init__(self) -> None:
        _check_whole("concurrency", self.concurrency, 1, CONCURRENCY_MAX)
        _check_whole("prefetch", self.prefetch, 0, CONCURRENCY_MAX)
        if self.count is not None:
            _check_whole("count", self.count, 1, 1 << 62)
        _check_seconds("invisible_for", self.invisible_for, _INVISIBLE_MIN)
        if self.retry_in is not None:
            _check_seconds("retry_in", self.retry_in, 0.0)
        if self.time_limit is not None:
            _check_seconds("time_limit", self.time_limit, 0.001)
        if type(self.until_empty) is not bool:
            raise CallerError(f"until_empty is {shown(self.until_empty)}; it must be True or False")


class Consumes(Generic[H, C]):
    """The call `consume` of whatever has the calls that `rounds` makes."""

    def consume(
        self,
        group: str,
        topics: str | Sequence[str],
        handler: H,
        *,
        concurrency: int = 4,
        prefetch: int = 0,
        invisible_for: float = INVISIBLE_DEFAULT,
        retry_in: float | None = None,
        time_limit: float | None = None,
        filter: str | SqlFilter | None = None,
        queue: int | None = None,
        count: int | None = None,
        until_empty: bool = False,
    ) -> C:
        """Calls `handler` with each message that a group gets of topics (a name, a pattern, or a
        list; see `pop`), `concurrency` at a time, until the consumer is stopped: in threads, or
        with `kvstore.aio` in tasks, for a handler that is async. A handler that returns acks its
        message; one that raises gives it back, with the exception's text as the reason, for another
        attempt after the group's backoff, or after `retry_in` seconds. Locks of `invisible_for`
        seconds are renewed while handlers run; the task of a handler whose lock is lost is
        cancelled.

        `prefetch` messages more are popped ahead, for quick handlers. A handler that runs for more
        than `time_limit` seconds is given up as one that failed. The consumer ends by itself after
        `count` messages, or with `until_empty` when no more can be had. `GroupNotFound`,
        `TopicNotFound`, `CallerError`.

        >>> with store.consume("billing", ["orders", "refunds"], print) as c:  # doctest: +SKIP
        ...     c.wait()
        """
        if not callable(handler):
            raise CallerError(f"handler is {shown(handler)}; it must be a function of a message")
        plan = Consuming(
            group=group,
            topics=topics if isinstance(topics, str) else tuple(listed("topics", topics)),
            concurrency=concurrency,
            prefetch=prefetch,
            invisible_for=invisible_for,
            retry_in=retry_in,
            time_limit=time_limit,
            filter=filter,
            queue=queue,
            count=count,
            until_empty=until_empty,
        )
        return self._consumer(plan, handler)

    def _consumer(self, plan: Consuming, handler: H) -> C:
        """A consumer with these settings."""
        raise NotImplementedError


class ConsumerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a consumer since it began. `taken`: messages that it popped. Of these `handled`
    were acked, `failed` were given back for another attempt or became dead letters (`timed_out` of
    them because the handler ran too long), `cancelled` were given back because the handler was
    ended by a stop, `undone` were given back before a handler began, and `lost` were somebody
    else's before their handler had ended. `renewed` counts renewals. `waiting` and `running` say
    how many messages wait for a handler, and have one, now.
    """

    taken: int = 0
    handled: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    undone: int = 0
    lost: int = 0
    renewed: int = 0
    waiting: int = 0
    running: int = 0


def is_async(handler: object) -> bool:
    """Whether calling a handler only makes a coroutine (or an async generator), to be awaited."""
    return any(
        is_one(called)
        for called in (handler, getattr(handler, "__call__", None))  # noqa: B004  # its method, not whether it has one
        for is_one in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    )


def check_within(within: object) -> None:
    """Checks the seconds that a stop gives handlers; `CallerError`."""
    if within is not None:
        _check_seconds("within", within, 0.0)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise CallerError(f"{name} is {shown(value)}; it must be a number from {least} to {most}")


def _check_seconds(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= INVISIBLE_MAX:  # type: ignore[operator]  # a number by now
        raise CallerError(
            f"{name} is {shown(value)}; it must be {least:g} to {INVISIBLE_MAX:.0f} seconds"
        )
