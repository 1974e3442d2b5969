"""Reads properties, which are text, as numbers, and matches them with LIKE patterns.

The idea: the expression decides how a text is read. A text that can't be read so makes the
comparison unknown, as a missing property does. In a pattern `%` stands for any characters or none.
It cuts the pattern into pieces of fixed length. All pieces but the first and the last are looked
for one behind the other, at the first place that fits: a later place could never help.

Invariants: nothing here raises, whatever the text. A number is a 64-bit integer or a finite double.
No piece is looked for twice, so a pattern of many `%` costs no more than reading the text once for
each of its characters; one regular expression of many `.*` would go back and forth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Final

_INTEGER_MIN: Final = -(1 << 63)
_INTEGER_MAX: Final = (1 << 63) - 1
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER_LENGTH_MAX: Final = 64
"""Above it a text of digits is a double at best, and int() takes more than linear time."""


def number_of(text: str) -> int | float | None:
    """The number that a whole text is, without spaces; None if it is none."""
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


# A piece of a pattern is its characters in order, None standing for any one.
_Piece = list[str | None]


def compile_like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A LIKE pattern, known to be right, as a test of a text."""
    pieces = _pieces(pattern, escape)
    # The commonest patterns become one call on the text.
    match ["".join(map(str, piece)) for piece in pieces if None not in piece]:
        case _ as plain if len(plain) < len(pieces):
            pass
        case [whole]:
            return lambda text: text == whole
        case [first, ""]:
            return lambda text: text.startswith(first)
        case ["", last]:
            return lambda text: text.endswith(last)
        case ["", part, ""]:
            return lambda text: part in text
    return _one_behind_the_other(pieces)


def _pieces(pattern: str, escape: str | None) -> list[_Piece]:
    """The characters before, between and behind the `%`s: one more piece than there are."""
    pieces: list[_Piece] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            pieces[-1].append(next(characters))
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


def _one_behind_the_other(pieces: list[_Piece]) -> Callable[[str], bool]:
    expressions = [
        re.compile("".join(re.escape(c) if c else "." for c in piece), re.DOTALL)
        for piece in pieces
    ]
    if len(pieces) == 1:
        fits = expressions[0].fullmatch
        return lambda text: fits(text) is not None
    begins, ends = expressions[0].match, expressions[-1].match
    finds = [expression.search for expression in expressions[1:-1] if expression.pattern]
    first, last = len(pieces[0]), len(pieces[-1])

    def holds(text: str) -> bool:
        at, stop = first, len(text) - last
        if at > stop or begins(text) is None or ends(text, stop) is None:
            return False
        for find in finds:
            found = find(text, at, stop)
            if found is None:
                return False
            at = found.end()
        return True

    return holds
