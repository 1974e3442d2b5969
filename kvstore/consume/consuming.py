"""The settings of a consumer, and its figures.

The idea: what a caller asks for is checked once, and goes on as one value. Invariant: a `Consuming`
that exists is right as far as that can be known without the store.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kvstore.errors import CallerError, shown
from kvstore.pop.popped import INVISIBLE_MAX
from kvstore.record.validate import listed

CONCURRENCY: Final = 4
"""Handlers that run at a time if the caller says nothing."""
CONCURRENCY_MAX: Final = 4096
_INVISIBLE_MIN: Final = 0.1
"""Seconds: a lock is renewed at each third of its time."""


class Consuming(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a consumer; `Store.consume` says what they mean."""

    group: str
    topics: str | tuple[str, ...]
    concurrency: int
    prefetch: int
    invisible_for: float
    retry_in: float | None
    time_limit: float | None
    filter: Any
    queue: int | None
    count: int | None
    until_empty: bool


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


def check_consuming(
    handler: object,
    group: str,
    topics: str | Sequence[str],
    *,
    concurrency: int,
    prefetch: int,
    invisible_for: float,
    retry_in: float | None,
    time_limit: float | None,
    filter: Any,
    queue: int | None,
    count: int | None,
    until_empty: bool,
) -> Consuming:
    """The settings, checked; `CallerError`."""
    if not callable(handler):
        raise CallerError(f"handler is {shown(handler)}; it must be a function of a message")
    _check_whole("concurrency", concurrency, 1, CONCURRENCY_MAX)
    _check_whole("prefetch", prefetch, 0, CONCURRENCY_MAX)
    if count is not None:
        _check_whole("count", count, 1, 1 << 62)
    _check_seconds("invisible_for", invisible_for, _INVISIBLE_MIN)
    if retry_in is not None:
        _check_seconds("retry_in", retry_in, 0.0)
    if time_limit is not None:
        _check_seconds("time_limit", time_limit, 0.001)
    if type(until_empty) is not bool:
        raise CallerError(f"until_empty is {shown(until_empty)}; it must be True or False")
    return Consuming(
        group=group,
        topics=topics if isinstance(topics, str) else tuple(listed("topics", topics)),
        concurrency=concurrency,
        prefetch=prefetch,
        invisible_for=float(invisible_for),
        retry_in=retry_in,
        time_limit=time_limit,
        filter=filter,
        queue=queue,
        count=count,
        until_empty=until_empty,
    )


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
