"""Namespaces: the store's name of each topic and group in one, and the list of them.

The idea: RocketMQ's convention. `orders` in namespace `tenant-a` is `tenant-a%orders` in the log,
its group's dead letters are in `%DLQ%tenant-a%billing`: `%RETRY%` and `%DLQ%` stay in front. So the
names of a namespace are three ranges of names, and nobody keeps a list of them. Only the fact that
a namespace was made is a row of its own (`meta`, `namespace/` and its name), since it may be empty.

Invariants: a namespace has no `%` in its name, so the first one behind such a prefix ends it: a
name in the store belongs to one namespace at most, and a name in a namespace has exactly one name
in the store, however it is spelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kvstore.core.names import DLQ_PREFIX, RETRY_PREFIX
from kvstore.errors import CallerError, FilterIllegal, MessageIllegal, StoreError, shown
from kvstore.index.families import Batch, Families
from kvstore.index.keys import GROUPS, META, TOPICS

SEPARATOR: Final = "%"
NAME_MAX: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9_|-]+")
_IN_FRONT: Final = (DLQ_PREFIX, RETRY_PREFIX)
_ROW: Final = b"namespace/"
_AFTER_ROWS: Final = b"namespace0"
_BEHIND: Final = bytes((ord(SEPARATOR) + 1,))
"""Sorts behind the separator: `a&` is behind all names of namespace `a`."""


class _Row(msgspec.Struct, frozen=True):
    created_at: int


# --- names ---


def check_namespace(name: str) -> str:
    """`name`, if a namespace can have it; `CallerError`."""
    if not isinstance(name, str) or len(name) > NAME_MAX or not _NAME.fullmatch(name):
        raise CallerError(
            f"namespace is {shown(name)}; it must be 1 to {NAME_MAX} letters A-Z and "
            "a-z, digits, - _ |"
        )
    return name


def wrap(namespace: str, name: str) -> str:
    """The store's name of a namespace's topic or group."""
    front, bare = _apart(name)
    if not bare:
        # With the namespace in front it would look like a legal name.
        raise MessageIllegal(f"{shown(name)} is no name of a topic or group: nothing stands in it")
    return f"{front}{namespace}{SEPARATOR}{bare}"


def unwrap(namespace: str, name: str) -> str | None:
    """The namespace's own name of the store's topic or group; None if it is not its own."""
    front, bare = _apart(name)
    begin = namespace + SEPARATOR
    return front + bare[len(begin) :] if bare.startswith(begin) else None


def namespace_of(name: str) -> str | None:
    """The namespace that a topic or group of the store belongs to, or None."""
    found, separator, _ = _apart(name)[1].partition(SEPARATOR)
    return found if separator and found else None


def belongs_to(namespace: str) -> Callable[[str], bool]:
    """Whether a name in the store belongs to a namespace."""
    return lambda name: namespace_of(name) == namespace


def speak_own_names(namespace: str, error: StoreError) -> None:
    """Changes the names of topics and groups that an error quotes to those of the namespace."""
    # A filter's error quotes the filter, in which no text is a name of the store.
    if isinstance(error, FilterIllegal):
        return

    def own(found: re.Match[str]) -> str:
        quote, name = found.groups()
        return f"{quote}{unwrap(namespace, name) or name}{quote}"

    fronts = "|".join(map(re.escape, _IN_FRONT))
    quoted = re.compile(rf"""(['"])((?:{fronts})?{re.escape(namespace)}{SEPARATOR}.+?)\1""")
    error.args = tuple(quoted.sub(own, a) if isinstance(a, str) else a for a in error.args)


def _apart(name: str) -> tuple[str, str]:
    if not isinstance(name, str):
        raise MessageIllegal(f"the name is {shown(name)}; it must be a text")
    for front in _IN_FRONT:
        if name.startswith(front):
            return front, name[len(front) :]
    return "", name


def ranges(namespace: str) -> list[tuple[bytes, bytes]]:
    """First name and end of each range of names that belong to a namespace."""
    found = []
    for front in ("", *_IN_FRONT):
        begin = (front + namespace).encode()
        found.append((begin + SEPARATOR.encode(), begin + _BEHIND))
    return found


# --- the list of namespaces ---


class Namespaces:
    """The namespaces of a store; see the module."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def is_made(self, name: str) -> bool:
        """Whether a namespace was made by `create_namespace`."""
        return self._families.get(META, _ROW + name.encode()) is not None

    def put_new(self, batch: Batch, name: str, now_ms: int) -> None:
        """Puts a new namespace into a batch."""
        batch.put(META, _ROW + name.encode(), msgspec.msgpack.encode(_Row(now_ms)))

    def put_removal(self, batch: Batch, name: str) -> None:
        """Puts the removal of one into a batch."""
        batch.delete(META, _ROW + name.encode())

    def all(self) -> list[str]:
        """All namespaces: those that were made, and those that occur in names of topics and
        groups.
        """
        rows = self._families.rows(META, _ROW, _AFTER_ROWS)
        found = {key[len(_ROW) :].decode() for key, _ in rows}
        for family in (TOPICS, GROUPS):
            found.update(self._named(family))
        return sorted(found)

    def _named(self, family: str) -> Iterator[str]:
        """Namespaces that occur in names of a family, by one look for each and one for each name
        without one.
        """
        it = self._families.iter(family)
        it.seek(b"")
        while self._families.valid(it):
            key: bytes = it.key()
            name = key.decode("utf-8", "replace")
            found = namespace_of(name)
            if found is None:
                it.next()
                continue
            yield found
            front = _apart(name)[0].encode()
            it.seek(front + found.encode() + _BEHIND)
