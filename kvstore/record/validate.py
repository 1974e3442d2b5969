"""Checks names of topics and groups, lists and attributes that a caller gave, before they are used.

The idea: the limits are RocketMQ's (Validators, TopicValidator), because names end up in its
records and, with its own stores, as folder names. Good names are remembered, so the check costs a
put next to nothing.

Invariants: a checked name fits every field it is written to; attributes that pass `attributes_of`
can be written to a row and read from it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeVar

from kvstore.core.names import DLQ_PREFIX, RETRY_PREFIX
from kvstore.errors import CallerError, MessageIllegal, shown
from kvstore.record.layout import GROUP_MAX, RETRY_TOPIC_MAX, TOPIC_MAX

T = TypeVar("T")
_NAME: Final = re.compile(r"[A-Za-z0-9%_|-]+")
_ALLOWED: Final = "the letters A-Z and a-z, digits, and % - _ |"


def check_topic(name: str) -> bytes:
    """The topic's bytes, as in a record.

    Raises MessageIllegal if the name is empty, has a character that isn't allowed, or is longer
    than 127 characters (255 for names that begin with %RETRY% or %DLQ%).
    """
    try:
        return _topic_bytes(name)
    except TypeError:
        raise _not_text("topic", name) from None


def check_group(name: str) -> bytes:
    """The group's bytes; raises MessageIllegal as `check_topic` does, with a limit of 120
    characters."""
    try:
        return _group_bytes(name)
    except TypeError:
        raise _not_text("group", name) from None


# Only good names get into the caches: a call that raises leaves nothing behind.
@lru_cache(maxsize=8192)
def _topic_bytes(name: str) -> bytes:
    own_topic = isinstance(name, str) and name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _name_bytes("topic", name, RETRY_TOPIC_MAX if own_topic else TOPIC_MAX)


@lru_cache(maxsize=8192)
def _group_bytes(name: str) -> bytes:
    return _name_bytes("group", name, GROUP_MAX)


def _name_bytes(what: str, name: str, limit: int) -> bytes:
    if not isinstance(name, str):
        raise _not_text(what, name)
    if not name:
        raise MessageIllegal(f"{what} name is empty")
    if len(name) > limit:
        raise MessageIllegal(
            f"{what} {name[:300]!r} has {len(name)} characters, at most {limit} fit"
        )
    if not _NAME.fullmatch(name):
        raise MessageIllegal(f"{what} {shown(name)} has characters other than {_ALLOWED}")
    return name.encode("ascii")


def _not_text(what: str, name: object) -> MessageIllegal:
    return MessageIllegal(f"{what} {shown(name):.80} is not a str")


def listed(name: str, values: Iterable[T]) -> list[T]:
    """The several values a caller gave, as a list; `CallerError` if they are none."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise CallerError(f"{name} is {shown(values)}; it must be a list")
    return list(values)


def attributes_of(given: object) -> dict[str, str]:
    """The caller's attributes as a dict; `CallerError` if they are no mapping of texts to texts."""
    if not isinstance(given, Mapping):
        raise CallerError(
            f"attributes are {shown(given)}; they must be a mapping of texts to texts"
        )
    for item in given.items():
        for text in item:
            if not isinstance(text, str) or not _is_unicode(text):
                raise CallerError(
                    f"the attributes have {shown(text)}; names and values must be "
                    "texts, without lone surrogates"
                )
    return dict(given)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
