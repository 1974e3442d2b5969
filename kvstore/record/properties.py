"""Properties: text pairs as the bytes of a record's properties field, and back.

The idea: the field is `name \\x01 value \\x02` repeated, in UTF-8, as RocketMQ (MessageDecoder)
writes and reads it. Writing is strict, so that the bytes mean the same to every reader; reading is
as lenient as RocketMQ's, because the bytes may come from RocketMQ.

Invariants: `decode_properties(encode_properties(p)) == p` for every p that can be encoded; decoding
never raises, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from zlib_ng.zlib_ng import crc32

from kvstore.errors import MessageIllegal, PropertiesTooLarge, shown
from kvstore.record.layout import CRC_MASK, PROPERTIES_MAX
from kvstore.record.names import PROPERTY_CRC

DIGITS: Final = 10
PROPERTY_CRC_HEAD: Final = PROPERTY_CRC.encode() + b"\x01"
PROPERTY_CRC_SIZE: Final = len(PROPERTY_CRC_HEAD) + DIGITS + 1

# The format, not some input: records written elsewhere have these 20 bytes.
assert PROPERTY_CRC_SIZE == 20


def property_crc_suffix(record: bytes | bytearray | memoryview) -> bytes:
    """The CRC property, whose 20 bytes end a record, for all the bytes before them.

    Size and properties length in `record` must count them already, its properties must be empty or
    end with 0x02, and nothing may change afterwards, the position included.
    """
    digits = f"{crc32(record) & CRC_MASK:0{DIGITS}d}"[::-1]
    return PROPERTY_CRC_HEAD + digits.encode() + b"\x02"


NAME_END: Final = "\x01"
"""Between a name and its value."""
VALUE_END: Final = "\x02"
"""After a value; the last one of a field may be missing."""
NAME_END_BYTE: Final = b"\x01"
VALUE_END_BYTE: Final = b"\x02"
_EMPTY_VALUE: Final = NAME_END + VALUE_END
_EMPTY_NAME: Final = VALUE_END + NAME_END


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The field's bytes for `properties`, in the mapping's order; every pair ends with 0x02.

    Raises MessageIllegal, naming the property, if a name or a value is not a str, is empty (readers
    skip empty values), or holds 0x01, 0x02 or a lone surrogate. Raises PropertiesTooLarge above
    32,767 bytes.
    """
    if not properties:
        return b""
    # All pairs are joined first and checked together: one pass in C instead of checks per pair.
    try:
        text = VALUE_END.join(map(NAME_END.join, properties.items())) + VALUE_END
        raw = text.encode()
    except (TypeError, UnicodeEncodeError):
        raise _explain(properties) from None
    count = len(properties)
    if (
        text.count(NAME_END) != count
        or text.count(VALUE_END) != count
        or _EMPTY_VALUE in text
        or _EMPTY_NAME in text
        or text[0] == NAME_END
    ):
        raise _explain(properties)
    if len(raw) > PROPERTIES_MAX:
        raise PropertiesTooLarge(
            f"properties take {len(raw)} bytes, at most {PROPERTIES_MAX} fit",
            len(raw),
            PROPERTIES_MAX,
        )
    return raw


def decode_properties(raw: bytes) -> dict[str, str]:
    """The pairs in `raw`, read as RocketMQ reads them; a later pair of the same name wins.

    Pairs without a name or without a value (so: anything under 3 characters) are skipped, a value
    may hold 0x01, the last 0x02 may be missing, and invalid UTF-8 becomes U+FFFD. Never raises.
    """
    found: dict[str, str] = {}
    for pair in raw.decode("utf-8", "replace").split(VALUE_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            found[name] = value
    return found


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """The value of one property as bytes, without decoding the others; None if it is not there.

    Agrees with `decode_properties`: the last non-empty value of that name wins. `name` is UTF-8.
    """
    needle = _needle(name)
    if needle is None:
        return None
    # A name begins at 0 or after 0x02: the same bytes elsewhere are part of a value.
    at = raw.rfind(needle)
    while at >= 0:
        start = at + len(needle)
        end = raw.find(VALUE_END_BYTE, start)
        if end != start and start != len(raw):
            return raw[start:] if end < 0 else raw[start:end]
        at = raw.rfind(needle, 0, at)
    if raw.startswith(needle[1:]):
        start = len(needle) - 1
        end = raw.find(VALUE_END_BYTE, start)
        return (raw[start:] if end < 0 else raw[start:end]) or None
    return None


@lru_cache(maxsize=256)
def _needle(name: bytes) -> bytes | None:
    """The bytes before a value, unless it is the field's first; None if `name` can't be a name."""
    if not name or NAME_END_BYTE in name or VALUE_END_BYTE in name:
        return None
    return VALUE_END_BYTE + name + NAME_END_BYTE


def _explain(properties: Mapping[str, str]) -> MessageIllegal:
    """The error that names the first property that can't be stored."""
    for name, value in properties.items():
        if problem := _problem(name):
            return MessageIllegal(f"property name {shown(name)} {problem}")
        if problem := _problem(value):
            return MessageIllegal(f"property {shown(name)}: value {shown(value):.80} {problem}")
    return MessageIllegal("properties are not a mapping of text to text")


def _problem(text: object) -> str:
    """The fault of a name or a value; empty if there is none."""
    if not isinstance(text, str):
        return f"is a {type(text).__name__}, not a str"
    if not text:
        return "is empty"
    if NAME_END in text or VALUE_END in text:
        return "holds a character 0x01 or 0x02, which separate properties"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which UTF-8 can't store"
    return ""
