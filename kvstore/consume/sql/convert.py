"""Reading a property's text as a number or a truth.

The idea: properties are text, and the expression decides as what one is read; a text that can't be
read so makes the comparison unknown, as a missing property does.

Invariants: neither function raises, whatever the text; a number is a 64-bit integer or a finite
double; the time is linear in the text, or the text is short."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER_LENGTH_MAX: Final = 64
"""Above it a text of digits is a double at best, and int() takes more than linear time."""
_INTEGER_MIN: Final = -(1 << 63)
_INTEGER_MAX: Final = (1 << 63) - 1
_TRUTHS: Final = {"true": True, "false": False}


def number_of(text: str) -> int | float | None:
    """The number that a text is: all of it, without spaces; None if it is none."""
    # Most are short and of digits only, and this is all the work they make. (18 digits always fit;
    # without isascii, int() reads the digits of every script.)
    if text.isdecimal() and len(text) <= 18 and text.isascii():
        return int(text)
    if _NUMBER.fullmatch(text) is None:
        return None
    if len(text) <= _INTEGER_LENGTH_MAX and text.lstrip("+-").isdecimal():
        value = int(text)
        if _INTEGER_MIN <= value <= _INTEGER_MAX:
            return value
    return fitting(float(text))


def fitting(value: int | float) -> int | float | None:
    """A number that fits a 64-bit integer or a double; None if it does not."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if _INTEGER_MIN <= value <= _INTEGER_MAX else None


def truth_of(text: str) -> bool | None:
    """Whether a text says true or false, in any case; None if it says neither."""
    return _TRUTHS.get(text.lower())
