"""Pending messages, plainly: what properties say of a wait, and the copies that end one.

The idea: a dict of a record's properties, without speed. The core's `pending` is held to it.
"""

from __future__ import annotations

from typing import Final

from tests.reference.records import expires_at, pairs

_DUE: Final = b"TIMER_OUT_MS"
_BEFORE: Final = b"TIMER_BEFORE_MS"
_TOPIC: Final = b"REAL_TOPIC"
_QUEUE: Final = b"REAL_QID"
_CANCELLED: Final = b"TIMER_DEL_UNIQKEY"
_WAIT: Final = (_DUE, _BEFORE, _TOPIC, _QUEUE, _CANCELLED)
_LEFT_OUT: Final = (*_WAIT, b"UNIQ_KEY", b"__CRC32#")


def _number(digits: bytes | None, most: int) -> int:
    if digits is None or not 0 < len(digits) <= most or not digits.isdigit():
        return -1
    return int(digits)


def read_pending(properties: bytes) -> tuple[int, str, int] | None:
    """Due time, topic and queue of a message that waits."""
    found = dict(pairs(properties))
    due, queue = _number(found.get(_DUE), 13), _number(found.get(_QUEUE), 10)
    if _TOPIC not in found or _CANCELLED in found or due <= 0:
        return None
    if len(found.get(_QUEUE, b"")) != 10 or not 0 <= queue < 1 << 32:
        return None
    return due, found[_TOPIC].decode("utf-8", "replace"), queue


def read_end(properties: bytes) -> tuple[int, str | None] | None:
    """The due time of the message whose wait a record ends, and its topic."""
    found = dict(pairs(properties))
    due = _number(found.get(_BEFORE, found.get(_DUE)), 13)
    if due < 0:
        return None
    topic = found.get(_TOPIC)
    return due, None if topic is None else topic.decode("utf-8", "replace")


def copied_properties(properties: bytes, due: int, wanted: int, topic: str, queue: int) -> bytes:
    """The properties of a copy that ends the wait until `due`: to wait until `wanted`, or (0) not
    any more.
    """
    found = pairs(properties)
    kept = [(b"UNIQ_KEY", dict(found)[b"UNIQ_KEY"])]
    if expires_at(properties) is not None:
        kept.insert(0, found.pop(0))
    for name, value in found:
        if name == b"KEYS":
            tokens = [token for token in value.split(b" ") if token]
            kept += [(name, b" ".join(tokens))] if tokens else []
        elif name not in _LEFT_OUT:
            kept.append((name, value))
    if wanted:
        kept += [(_BEFORE, b"%013d" % due), (_DUE, b"%013d" % wanted), (_TOPIC, topic.encode())]
        kept.append((_QUEUE, b"%010d" % queue))
    else:
        kept.append((_DUE, b"%013d" % due))
    return b"".join(b"%s\x01%s\x02" % pair for pair in kept)
