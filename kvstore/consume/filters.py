"""Filters: which messages of a queue a reader wants.

The idea: a tag expression is tags joined by `||`; `*`, or none at all, lets everything through. The
tag itself is compared, never its hash alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kvstore.errors import CallerError
from kvstore.record.values import StoredMessage

Filter = Callable[[StoredMessage], bool]


@lru_cache(maxsize=1024)
def compile_tags(expression: str) -> Filter | None:
    """A tag expression as a test; None if it lets everything through. `CallerError` if it has an
    empty tag.
    """
    if expression.strip() == "*":
        return None
    tags = frozenset(part.strip() for part in expression.split("||"))
    if "" in tags:
        raise CallerError(
            f"filter {expression!r} has an empty tag; write tags as 'a || b', or '*' for all"
        )

    def wanted(message: StoredMessage) -> bool:
        return message.tag in tags

    return wanted


def compile_filter(expression: str | None) -> Filter | None:
    """A filter as given to `pull`; `CallerError` if it is not a text."""
    if expression is None:
        return None
    if not isinstance(expression, str):
        raise CallerError(f"filter is {expression!r}; it must be a text such as 'a || b', or None")
    return compile_tags(expression)
