"""The tree of an expression: what the parser makes and the compiler reads.

The idea: a node is either a value or a condition, and only a property and a truth can be both.
`NOT IN` and its like are a `Not` around the plain condition.

Invariants: nodes are immutable; `at` is where the node begins in the text; AND, OR and arithmetic
of one rank are one node with many terms, so the tree is as deep as the text is nested and no
deeper."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Property:
    """A property's text; as a condition, whether it says true."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number written in the expression."""

    at: int
    value: int | float


@dataclass(frozen=True, slots=True)
class Text:
    """A text written in the expression."""

    at: int
    value: str


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE, or (None) NULL."""

    at: int
    value: bool | None


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`first`, then each step's sign (+ - * /) and operand, from left to right."""

    at: int
    first: Value
    steps: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`sign` is one of = <> < <= > >=."""

    at: int
    sign: str
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Between:
    """Both bounds belong to it."""

    at: int
    value: Value
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class In:
    """One of these texts."""

    at: int
    value: Property | Text
    options: frozenset[str]


@dataclass(frozen=True, slots=True)
class Like:
    """`%` stands for any characters, `_` for one; after `escape` they stand for themselves."""

    at: int
    value: Property | Text
    pattern: str
    escape: str | None


class Where(StrEnum):
    """Where a `Search` looks."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Search:
    """A part of the text, taken as it is."""

    at: int
    value: Property | Text
    where: Where
    part: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """The message has no such property."""

    at: int
    value: Property


@dataclass(frozen=True, slots=True)
class Not:
    """Unknown stays unknown."""

    at: int
    condition: Condition


@dataclass(frozen=True, slots=True)
class And:
    """Two terms or more."""

    at: int
    terms: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Two terms or more."""

    at: int
    terms: tuple[Condition, ...]


Value = Property | Number | Text | Truth | Arithmetic
Condition = Property | Truth | Comparison | Between | In | Like | Search | IsNull | Not | And | Or
Node = Value | Condition
