"""LIKE patterns: a text with `%` (any characters, or none) and `_` (one) as a test.

The idea: `%` cuts a pattern into pieces of fixed length. The first must begin the text, the last
must end it, and each of the others is looked for behind the one before it, at the first place that
fits: a later place could never help. The commonest patterns become one call on the text.

Invariant: no piece is looked for twice, so a pattern of many `%` costs no more than reading the
text once for each of its characters; a regular expression of many `.*` would go back and forth."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Holds = Callable[[str], bool]

ANY: Final = "%"
ONE: Final = "_"


def compile_like(pattern: str, escape: str | None) -> Holds:
    """A pattern, known to be right, as a test of a text."""
    pieces = _pieces(pattern, escape)
    if len(pieces) == 1:
        return _whole(pieces[0])
    if any(_ONE_CHARACTER in piece for piece in pieces):
        return _general(pieces)
    first, *middle, last = ("".join(filter(None, piece)) for piece in pieces)
    if not middle and not last:
        return lambda text: text.startswith(first)
    if not middle and not first:
        return lambda text: text.endswith(last)
    if len(middle) == 1 and not first and not last:
        (part,) = middle
        return lambda text: part in text
    return _general(pieces)


# A piece is its characters in order, None standing for any one.
_ONE_CHARACTER: Final = None
_Piece = list[str | None]


def _pieces(pattern: str, escape: str | None) -> list[_Piece]:
    """What stands before, between and behind the `%`s: one more piece than there are."""
    pieces: list[_Piece] = [[]]
    is_escaped = False
    for character in pattern:
        if is_escaped:
            pieces[-1].append(character)
            is_escaped = False
        elif character == escape:
            is_escaped = True
        elif character == ANY:
            pieces.append([])
        else:
            pieces[-1].append(_ONE_CHARACTER if character == ONE else character)
    return pieces


def _expression(piece: _Piece) -> str:
    return "".join("." if character is None else re.escape(character) for character in piece)


def _whole(piece: _Piece) -> Holds:
    if _ONE_CHARACTER not in piece:
        wanted = "".join(filter(None, piece))
        return lambda text: text == wanted
    fits = re.compile(_expression(piece), re.DOTALL).fullmatch
    return lambda text: fits(text) is not None


def _general(pieces: list[_Piece]) -> Holds:
    # "%%" is "%": an empty piece in the middle is found everywhere.
    first, *middle, last = (
        (re.compile(_expression(piece), re.DOTALL), len(piece))
        for at, piece in enumerate(pieces)
        if piece or at in (0, len(pieces) - 1)
    )
    begins, first_length = first
    ends, last_length = last
    finders = [found.search for found, _ in middle]

    def holds(text: str) -> bool:
        at = first_length
        stop = len(text) - last_length
        if at > stop or begins.match(text) is None or ends.match(text, stop) is None:
            return False
        for find in finders:
            found = find(text, at, stop)
            if found is None:
                return False
            at = found.end()
        return True

    return holds
