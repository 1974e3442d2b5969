"""Filters: which messages of a queue a reader wants.

The idea: a tag expression is tags joined by `||`; `*`, or none at all, lets everything through. The
tag itself is compared, never its hash alone. A filter over properties is made by `sql`.

A pop counts a message that its filter refuses as done, so a mistaken expression would discard all
of a topic for its group. RocketMQ allows nearly any character in a tag. A filter is stricter: a
character that stands in conditions, lists or patterns is refused, and `sql` can still ask for a tag
that has one.

Invariant: a text that is no tag expression is refused with the place of its fault."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from kvstore.core.messages import StoredMessage
from kvstore.core.names import TAG_SEPARATOR
from kvstore.errors import (
    CallerError,
    FilterIllegal,
    shown,
)
from kvstore.read.sql import SqlFilter, sql
from kvstore.read.sql.filter_faults import check_length, fault

Filter = Callable[[StoredMessage], bool]

_SIGNS: Final = frozenset("<>=!'\"`(),;&|*")
_UNSEEN: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
"""Blanks and invisible characters."""
_NAMED: Final = re.compile(
    "EQUAL|LESS-THAN|GREATER-THAN|QUOTATION MARK|CORNER BRACKET|^ACUTE ACCENT"
)
"""Beyond ASCII: in Unicode's names of signs that compare, and of quotes, into which programs that
handle text turn ASCII's.
"""
_EXAMPLE: Final = "amount > 5 AND region = 'eu'"
_SHOWN_MAX: Final = 80


@lru_cache(maxsize=1024)
def compile_tags(expression: str) -> Filter | None:
    """A tag expression as a test; None if it lets every message through. `FilterIllegal` if it has
    an empty tag, or a character that no tag has in an expression.
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
        strange = next(
            (n for n, character in enumerate(tag) if not _may_be_in_a_tag(character)), -1
        )
        if strange >= 0:
            raise _no_tag(expression, tag, expression.index(tag, at) + strange)
        tags.add(tag)
        at += len(part) + len(TAG_SEPARATOR)

    def wanted(message: StoredMessage) -> bool:
        return message.tag in tags

    return wanted


def _may_be_in_a_tag(character: str) -> bool:
    """Whether a tag in an expression may have a character."""
    if character.isascii():
        return character not in _SIGNS and not _UNSEEN.match(character)
    return not (
        _UNSEEN.match(character)
        # A wide or a small form of a sign is taken for the sign.
        or unicodedata.normalize("NFKC", character) in _SIGNS
        or _NAMED.search(unicodedata.name(character, ""))
    )


def _no_tag(expression: str, tag: str, at: int) -> FilterIllegal:
    """The error for a text that can't be a tag; it shows the ways to say what may be meant."""
    condition = expression if _is_sql(expression) else _EXAMPLE
    exactly = "TAGS = '" + tag.replace("'", "''") + "'"
    ways = [
        "a text is tags joined by '||', or '*' for all",
        f"a condition over properties is {_call(condition)}",
        f"a tag with {expression[at]!r} in it is {_call(exactly)}",
    ]
    if len(condition) > _SHOWN_MAX or len(exactly) > _SHOWN_MAX:
        ways = [ways[0], f"anything else is {_call(_EXAMPLE)}"]
    return fault(
        expression,
        at,
        f"a tag can't have {expression[at]!r} here; {'; '.join(ways)} (on the command line: --sql)",
    )


def _is_sql(expression: str) -> bool:
    try:
        sql(expression)
    except FilterIllegal:
        return False
    return True


def _call(expression: str) -> str:
    return f"kvstore.sql({expression!r})"


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
