"""Properties: text pairs as the bytes of a record's properties field.

The idea: the field is `name \\x01 value \\x02` repeated, in UTF-8, as RocketMQ (MessageDecoder)
writes and reads it. Writing is strict, so that the bytes mean the same to every reader; reading
(`kvstore.core.records`) is as lenient as RocketMQ's, because the bytes may come from RocketMQ.

Invariant: `decode_properties(encode_properties(p)) == p` for every p that can be encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvstore.errors import MessageIllegal, PropertiesTooLarge, shown
from kvstore.record.layout import PROPERTIES_MAX

NAME_END: Final = "\x01"
"""Between a name and its value."""
VALUE_END: Final = "\x02"
"""After a value; the last one of a field may be missing."""
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
