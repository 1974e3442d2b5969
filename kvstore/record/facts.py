"""Facts: the parts of a record that the index needs, read without decoding the rest.

The idea: recovery and rebuild index records by the hundred thousand; they need place, queue, tag
and keys, not bodies.

Invariant: the record was checked before (`kvstore.record.check`); nothing here looks at sums or
sizes again.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kvstore.record.layout import (
    BODY_AT,
    BODY_SIZE,
    HOSTS_V6,
    MAGIC_V2,
    STORED_TIME,
    head_size,
    stored_time_at,
)
from kvstore.record.names import DELAY_LEVEL, KEYS, TAGS, UNIQUE_ID
from kvstore.record.properties import find_property

if TYPE_CHECKING:
    from kvstore.record.check import Buffer

# magic, queue id, queue offset, system flags, store time, body length, with IPv4 hosts
_FACTS: Final = Struct(">4xI4xI4xq8xI16xq20xI")
assert _FACTS.size == BODY_AT

_KEYS: Final = KEYS.encode()
_TAGS: Final = TAGS.encode()
_UNIQUE: Final = UNIQUE_ID.encode()
_DELAY: Final = DELAY_LEVEL.encode()
_KEYS_NAMED: Final = _KEYS + b"\x01"
_TAGS_NAMED: Final = _TAGS + b"\x01"
_UNIQUE_NAMED: Final = _UNIQUE + b"\x01"
_OURS: Final = re.compile(
    rb"%b([^\x02]+)\x02(?:%b([^\x02]+)\x02)?(?:%b([^\x02]+)\x02)?"
    % (_UNIQUE_NAMED, _KEYS_NAMED, _TAGS_NAMED)
)


class Facts(NamedTuple):
    """The facts of one record, from which its index entry is made."""

    topic: bytes
    queue: int
    offset: int
    system_flags: int
    stored_at: int
    properties: bytes


def facts(buffer: Buffer, at: int, size: int) -> Facts:
    """The facts of the whole, checked record of `size` bytes at index `at`."""
    magic, queue, offset, flags, stored_at, body = _FACTS.unpack_from(buffer, at)
    topic_at = at + BODY_AT + body
    if flags & HOSTS_V6:
        body_at = at + head_size(flags)
        (body,) = BODY_SIZE.unpack_from(buffer, body_at - BODY_SIZE.size)
        (stored_at,) = STORED_TIME.unpack_from(buffer, at + stored_time_at(flags))
        topic_at = body_at + body
    length = buffer[topic_at]
    topic_at += 1
    if magic == MAGIC_V2:
        length = length << 8 | buffer[topic_at]
        topic_at += 1
    topic_end = topic_at + length
    return Facts(
        bytes(buffer[topic_at:topic_end]),
        queue,
        offset,
        flags,
        stored_at,
        bytes(buffer[topic_end + 2 : at + size]),
    )


def tag_of(properties: bytes) -> str | None:
    """The tag, or None."""
    found = find_property(properties, _TAGS)
    return None if found is None else found.decode("utf-8", "replace")


def delay_level_of(properties: bytes) -> str | None:
    """The delay level, or None."""
    found = find_property(properties, _DELAY)
    return None if found is None else found.decode("utf-8", "replace")


def unique_id_of(properties: bytes) -> bytes | None:
    """The unique id, or None."""
    return find_property(properties, _UNIQUE) or None


def keys_of(properties: bytes) -> list[bytes]:
    """The keys, in order."""
    found = find_property(properties, _KEYS)
    return [k for k in found.split(b" ") if k] if found else []


def names_of(properties: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Unique id (empty: none), keys and tag (empty: none). Where they stand as this store's puts
    write them, at the front and nowhere else, they are found by one match.
    """
    found = _OURS.match(properties)
    if found is not None:
        rest = found.end()
        if (
            properties.find(_KEYS_NAMED, rest) < 0
            and properties.find(_TAGS_NAMED, rest) < 0
            and properties.find(_UNIQUE_NAMED, rest) < 0
        ):
            unique, keys, tag = found.groups(b"")
            return unique, [k for k in keys.split(b" ") if k], tag
    return (
        unique_id_of(properties) or b"",
        keys_of(properties),
        find_property(properties, _TAGS) or b"",
    )
