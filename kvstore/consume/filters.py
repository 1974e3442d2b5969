"""Filters: which messages of a queue a reader wants.

The idea: a tag expression is tags joined by `||`; `*`, or none at all, lets everything through. The
tag itself is compared, never its hash alone. A filter over properties is made by `sql`.

Invariant: a text that is no tag expression is refused with the place of its fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kvstore.consume.sql import SqlFilter
from kvstore.consume.sql.faults import check_length, fault
from kvstore.errors import (
    CallerError,
    shown,
)
from kvstore.record.names import TAG_SEPARATOR
from kvstore.record.values import StoredMessage

Filter = Callable[[StoredMessage], bool]


@lru_cache(maxsize=1024)
def compile_tags(expression: str) -> Filter | None:
    """A tag expression as a test; None if it lets everything through. `FilterIllegal` if it has an
    empty tag.
    """
    check_length(expression)
    if expression.strip() == "*":
        return None
    at = 0
    tags = set()
    for part in expression.split(TAG_SEPARATOR):
        tag = part.strip()
        if not tag:
            raise fault(
                expression, at, "a tag was expected; write tags as 'a || b', or '*' for all"
            )
        tags.add(tag)
        at += len(part) + len(TAG_SEPARATOR)

    def wanted(message: StoredMessage) -> bool:
        return message.tag in tags

    return wanted


def compile_filter(expression: str | SqlFilter | None) -> Filter | None:
    """A filter as given to `pull`; `CallerError` if it is neither a text nor made by `sql`."""
    if expression is None:
        return None
    if isinstance(expression, SqlFilter):
        return expression.matches
    if not isinstance(expression, str):
        raise CallerError(
            f"filter is {shown(expression)}; it must be a text such as 'a || b', a "
            "kvstore.sql(...), or None"
        )
    return compile_tags(expression)
