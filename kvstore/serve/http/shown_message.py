"""Shown messages: bodies and properties as text that can be shown safely.

The idea: a body is shown as text if it is UTF-8 without control characters, else as a hex dump. A
template escapes the text; here it is bounded, and characters that would change how other text is
displayed are written as their numbers.

Invariants: no more than `TEXT_MAX` bytes of a body, or `HEX_MAX` of a binary one, are worked on,
whatever its size; each result is made of printable characters, line ends and tabs.
"""

from __future__ import annotations

import codecs
from typing import Final, Literal, NamedTuple

from kvstore.core.names import RESERVED
from kvstore.message import StoredMessage

TEXT_MAX: Final = 64 << 10
HEX_MAX: Final = 4 << 10
_LINE: Final = 16
_PROPERTIES_MAX: Final = 200
_VALUE_MAX: Final = 1000
_KEPT: Final = frozenset("\t\n\r")


class ShownBody(NamedTuple):
    """A body as text or as a hex dump; `shown` of its `size` bytes are in it."""

    kind: Literal["text", "hex"]
    text: str
    shown: int
    size: int


def show_body(body: bytes) -> ShownBody:
    """A body for people.

    >>> show_body(b"shoes").text
    'shoes'
    >>> show_body(bytes([0, 1, 65])).text
    '00000000  00 01 41                                         ..A'
    """
    part = body[:TEXT_MAX]
    try:
        # The last character may be cut.
        text = codecs.getincrementaldecoder("utf-8")().decode(part, len(part) == len(body))
    except UnicodeDecodeError:
        text = ""
    if text and all(c in _KEPT or (c.isprintable() or c.isspace()) for c in text):
        return ShownBody("text", plain(text), len(part), len(body))
    if not body:
        return ShownBody("text", "", 0, 0)
    part = body[:HEX_MAX]
    return ShownBody("hex", _dump(part), len(part), len(body))


def plain(text: str) -> str:
    """A text whose characters are all printable, line ends or tabs; others are written as \\u202e.

    Marks that reverse the direction of text are not printable, so they are among these.
    """
    return "".join(c if c.isprintable() or c in _KEPT else f"\\u{ord(c):04x}" for c in text)


def show_properties(message: StoredMessage) -> list[tuple[str, str, bool]]:
    """A message's properties, bounded: name, value, and whether it is the sender's own."""
    shown = []
    for name, value in list(message.properties.items())[:_PROPERTIES_MAX]:
        text = value if len(value) <= _VALUE_MAX else f"{value[:_VALUE_MAX]}…"
        shown.append((plain(name), plain(text), name not in RESERVED))
    return shown


def _dump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), _LINE):
        part = data[at : at + _LINE]
        signs = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * _LINE}} {signs}")
    return "\n".join(lines)
