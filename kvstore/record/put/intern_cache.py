"""Intern cache: tags and property names that were checked before, with their encoded texts and
hashes.

The idea: there are few tags and names, and they come again with every message, so a look-up
replaces the check and the work.

Invariant: everything in the cache may be written as it is; a refused text leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvstore.record.hashing.hashes import java_hash
from kvstore.record.names import MULTI_TAG, RESERVED, TAGS, TRANSIENT_PREFIX
from kvstore.record.put.explain import ColumnFault

_MAX: Final = 4096
_TAGS: Final = TAGS + "\x01"


class _TagTexts(dict[str | None, str]):
    """Tag -> its text among the properties, "" for no tag; raises `ColumnFault` for a value that
    can't be a tag.
    """

    def __missing__(self, tag: str | None) -> str:
        if tag is None:
            found = ""
        elif not isinstance(tag, str) or not tag or has_separator(tag):
            raise ColumnFault("tags")
        else:
            found = "".join((_TAGS, tag, "\x02"))
        if len(self) >= _MAX:
            self.clear()
        # For an enum this takes its value, not its name.
        self[tag if tag is None else str.__str__(tag)] = found
        return found


class _TagHashes(dict[str | None, int]):
    """Tag, checked -> its hash."""

    def __missing__(self, tag: str | None) -> int:
        found = java_hash(tag) if tag else 0
        if len(self) >= _MAX:
            self.clear()
        self[tag if tag is None else str.__str__(tag)] = found
        return found


# Two look-ups a message in plain columns cost 45 ns, one look-up whose result is taken apart 110
# ns.
tag_texts: Final = _TagTexts()
tag_hashes: Final = _TagHashes()
checked_names: Final[set[str]] = set()


def flags_of(tag_text: str) -> int:
    """The system flags that follow from a tag's text."""
    return MULTI_TAG if "||" in tag_text else 0


def has_separator(joined: str) -> bool:
    """Whether a text has a forbidden character: a separator of properties, or the zero, which
    recovery takes for the trace of a torn write.
    """
    return "\x01" in joined or "\x02" in joined or "\0" in joined


def check_names(names: Iterable[str]) -> bool:
    """Check names that are new; False if there is a transient one, which is never stored."""
    for name in set(names) - checked_names:
        if not isinstance(name, str) or not name or name in RESERVED or has_separator(name):
            raise ColumnFault("properties")
        if name.startswith(TRANSIENT_PREFIX):
            return False
        if len(checked_names) >= _MAX:
            checked_names.clear()
        checked_names.add(str.__str__(name))
    return True
