"""The arguments of a pop, and how long its locks last.

The idea: a pop's arguments are checked once, in one place, and go on as one value, so that all
behind it reads numbers. Invariant: a `Wanted` that exists is right: whole milliseconds, a queue of
the topic, a compiled filter; a wrong argument raised before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from kvstore.clock import whole_ms
from kvstore.errors import CallerError, shown
from kvstore.meta.groups import GroupInfo
from kvstore.meta.topics import Topic
from kvstore.read.filters import Filter, compile_filter
from kvstore.read.pull import check_limits
from kvstore.read.sql import SqlFilter

UNLIMITED: Final = 1 << 62
"""`Wanted.max_bytes` if the caller gave none."""
INVISIBLE_DEFAULT: Final = 30.0
"""Seconds of a lock if a pop gives none."""
INVISIBLE_MAX: Final = 10 * 366 * 24 * 3600.0
"""Seconds: ten years; no lock should outlast them."""
_INVISIBLE_MIN: Final = 0.001
WAIT_MAX: Final = 24 * 3600.0
_ATTEMPT_ID_MAX: Final = 1024


class Wanted(NamedTuple):
    """The checked arguments of one pop. `queue` None is all queues; `attempt_id` is hashed, or
    empty.
    """

    limit: int
    max_bytes: int
    invisible_ms: int
    queue: int | None
    matches: Filter | None
    attempt_id: bytes


def check_wanted(
    topic: Topic | None,
    limit: int,
    max_bytes: int | None,
    invisible_for: object,
    queue: object,
    filter: str | SqlFilter | None,
    attempt_id: object,
) -> Wanted:
    """Checks the arguments of a pop of a topic, or of several; `CallerError`, `QueueNotFound`,
    `FilterIllegal`.
    """
    if topic is not None:
        topic.check_of_callers()
    check_limits(limit, max_bytes)
    invisible_ms = check_seconds("invisible_for", invisible_for)
    assert isinstance(invisible_for, int | float)
    if invisible_for < _INVISIBLE_MIN:
        raise CallerError("invisible_for is less than a millisecond; nobody could ack in time")
    if queue is not None and topic is not None:
        topic.key(queue)  # type: ignore[arg-type]  # it says what is wrong
        assert type(queue) is int
    hashed = b""
    if attempt_id is not None:
        if not isinstance(attempt_id, str) or not 0 < len(attempt_id) <= _ATTEMPT_ID_MAX:
            raise CallerError(
                f"attempt_id is {shown(attempt_id)}; it must be a text of 1 to {_ATTEMPT_ID_MAX} "
                "characters, or None"
            )
        hashed = xxh3_128_digest(attempt_id.encode("utf-8", "surrogatepass"))
    matches = compile_filter(filter)
    most = UNLIMITED if max_bytes is None else max_bytes
    return Wanted(limit, most, invisible_ms, queue, matches, hashed)  # type: ignore[arg-type]  # checked above, or refused with several topics


def lock_ms(group: GroupInfo, attempts: int, invisible_ms: int) -> int:
    """How long a lock lasts, in ms: the invisible time, and behind it the group's backoff if
    another attempt is to come.
    """
    return invisible_ms + backoff_ms(group, attempts)


def backoff_ms(group: GroupInfo, attempts: int) -> int:
    """How long a message waits for its next attempt, in ms; 0 if that was its last one."""
    return 0 if attempts >= group.max_attempts else whole_ms(group.backoff_after(attempts))


def check_seconds(name: str, seconds: object) -> int:
    """A duration in ms, rounded up; `CallerError` if it is negative, no number, or too long."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= INVISIBLE_MAX
    ):
        raise CallerError(
            f"{name} is {shown(seconds)}; it must be 0 to {INVISIBLE_MAX:.0f} seconds"
        )
    return whole_ms(seconds)


def check_wait(wait: object) -> float:
    """Seconds that a pop waits; `CallerError` if `wait` can't be that."""
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= WAIT_MAX:
        raise CallerError(f"wait is {shown(wait)}; it must be 0 to {WAIT_MAX:.0f} seconds")
    return float(wait)
