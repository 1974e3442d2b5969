"""Tokens: an expression's text, cut into words, values and signs.

The idea: one regular expression whose alternatives are tried in order at each place; what none of
them takes is a fault, often with advice, since people come from other languages. Tokens are made
one at a time, so that the first fault of a text is the one that is told.

Invariants: the last token is END, at the text's length; every token knows where it begins; no
alternative can be matched in two ways, so the time is linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from kvstore.consume.sql.faults import fault

NAME: Final = "name"
TEXT: Final = "text"
NUMBER: Final = "number"
END: Final = "end"

KEYWORDS: Final = frozenset(
    {
        "AND",
        "BETWEEN",
        "CONTAINS",
        "ENDSWITH",
        "ESCAPE",
        "FALSE",
        "IN",
        "IS",
        "LIKE",
        "NOT",
        "NULL",
        "OR",
        "STARTSWITH",
        "TRUE",
    }
)

INTEGER_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 19
"""Decimal digits of the largest 64-bit integer; Python refuses to read very many."""

# `[^']*(?:''[^']*)*` and not `(?:[^']|'')*`: there is one way to match it, and the lookahead keeps
# an open text from being taken up to one of its doubled quotes.
_TOKEN: Final = re.compile(
    r"""
      (?P<space>   [ \t\n\r\f]+ | --[^\n\r]* | /\*.*?\*/ )
    | (?P<hex>     0[xX][0-9a-fA-F]+[lL]?                                       (?![\w$.]) )
    | (?P<float>   (?: (?:[0-9]+\.[0-9]*|\.[0-9]+) (?:[eE][+-]?[0-9]+)? [dDfF]?
                   |   [0-9]+ (?:[eE][+-]?[0-9]+[dDfF]?|[dDfF]) )               (?![\w$.]) )
    | (?P<integer> [0-9]+[lL]?                                                  (?![\w$.]) )
    | (?P<text>    '[^']*(?:''[^']*)*'(?!') )
    | (?P<name>    (?:[^\W\d]|\$) (?:[\w$]|\.(?=[\w$]))* )
    | (?P<quoted>  `[^`]+` )
    | (?P<wrong>   == | != | && | \|\| )
    | (?P<sign>    <> | <= | >= | [=<>+\-*/(),] )
    """,
    re.VERBOSE | re.DOTALL,
)

_ADVICE: Final = {
    "==": "write = for equality",
    "!=": "write <> for inequality",
    "&&": "write AND",
    "||": "write OR; tags, such as 'a || b', are a filter without `sql`",
    "!": "write NOT, or <> for inequality",
    "'": "this text has no end; close it with ', and double a ' inside it",
    '"': "texts stand in single quotes, such as 'eu'; an unusual property name in backticks",
    "`": "this name is empty or has no end; close it with a backtick",
    "/*": "this comment has no end; close it with */",
    "%": "there is no remainder; LIKE has its pattern in single quotes",
}


class Token(NamedTuple):
    """`kind` is NAME, TEXT, NUMBER, END, a keyword in capitals, or a sign as it stands."""

    kind: str
    at: int
    word: str = ""
    """The name, or the content of a text."""
    number: int | float = 0


def tokens(expression: str) -> Iterator[Token]:
    """The tokens of an expression, END last; `FilterIllegal` where none begins."""
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        # A comment without end must not be read as a division.
        if found is None or (found[0] == "/" and expression.startswith("/*", at)):
            raise fault(expression, at, _advice(expression, at))
        if found.lastgroup != "space":
            yield _token(expression, at, found.lastgroup or "", found[0])
        at = found.end()
    yield Token(END, at)


def _token(expression: str, at: int, group: str, found: str) -> Token:
    if group == "name":
        word = found.upper()
        # Only ASCII: upper() makes the keyword IS of a dotless i and an s as well.
        return Token(word, at) if word in KEYWORDS and found.isascii() else Token(NAME, at, found)
    if group == "quoted":
        return Token(NAME, at, found[1:-1])
    if group == "text":
        return Token(TEXT, at, found[1:-1].replace("''", "'"))
    if group == "sign":
        return Token(found, at)
    if group == "wrong":
        raise fault(expression, at, _ADVICE[found])
    if group == "float":
        return Token(NUMBER, at, number=_float(expression, at, found))
    return Token(NUMBER, at, number=_integer(expression, at, found, 16 if group == "hex" else 10))


def _float(expression: str, at: int, found: str) -> float:
    value = float(found.rstrip("dDfF"))
    if value == float("inf"):
        raise fault(expression, at, "this number is above the largest double, about 1.8e308")
    return value


def _integer(expression: str, at: int, found: str, base: int) -> int:
    """The value, up to 2**63: whether that is too much depends on the sign, a token before it."""
    digits = found.rstrip("lL")
    if base == 10 and digits[0] == "0" and len(digits) > 1:
        problem = (
            "a number with a leading 0 would be octal to some readers; write it without the 0, or "
            "a text in single quotes"
        )
        raise fault(expression, at, problem)
    short = digits if base == 10 else digits[2:].lstrip("0")
    value = int(digits, base) if len(short) <= _DIGITS_MAX else INTEGER_MAX + 2
    if value > INTEGER_MAX + 1:
        raise too_large(expression, at)
    return value


def too_large(expression: str, at: int) -> Exception:
    """The error for an integer that is not one of 64 bits."""
    problem = (
        f"this integer has more than 64 bits; the range is -{INTEGER_MAX + 1} to {INTEGER_MAX}, "
        "larger ones can be written as doubles, such as 1e20"
    )
    return fault(expression, at, problem)


def _advice(expression: str, at: int) -> str:
    advice = _ADVICE.get(expression[at : at + 2]) or _ADVICE.get(expression[at])
    if advice is not None:
        return advice
    if expression[at].isdigit() or expression[at] == ".":
        return (
            "this is no number; write one such as 5, 5.5, 5e3 or 0x1F, and texts in single quotes"
        )
    return (
        f"{expression[at]!r} has no meaning here; texts stand in single quotes, unusual property "
        "names in backticks"
    )
