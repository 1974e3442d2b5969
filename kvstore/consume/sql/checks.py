"""Which nodes may stand where: what is wrong with an expression before any message is seen.

The idea: a property is always text, and is read as what it is held against; two written values of
different kinds can never be held against each other, so that is a fault. Each function returns
its node with a narrower type, or raises.

Invariant: what comes out of here can be compiled and asked without an error."""

from __future__ import annotations

from typing import Final

from kvstore.consume.sql.faults import fault
from kvstore.consume.sql.tree import (
    Arithmetic,
    Between,
    Comparison,
    Condition,
    Node,
    Number,
    Property,
    Text,
    Truth,
    Value,
)

_EQUALITY: Final = frozenset({"=", "<>"})


def condition(expression: str, node: Node) -> Condition:
    """A node that is true, false or unknown."""
    if isinstance(node, Number | Text | Arithmetic):
        problem = "this is a value, where a condition was expected; compare it with something"
        raise fault(expression, node.at, problem)
    return node


def value(expression: str, node: Node) -> Value:
    """A node that can be compared."""
    if not isinstance(node, Property | Number | Text | Truth | Arithmetic):
        problem = "this is a condition, where a value was expected; join conditions with AND or OR"
        raise fault(expression, node.at, problem)
    if isinstance(node, Truth) and node.value is None:
        raise fault(expression, node.at, "nothing compares with NULL; write IS NULL or IS NOT NULL")
    return node


def numeric(expression: str, node: Node) -> Property | Number | Arithmetic:
    """A value that is a number, or a property that may hold one."""
    found = value(expression, node)
    if isinstance(found, Text | Truth):
        problem = "a number or a property was expected; a number is written without quotes"
        raise fault(expression, found.at, problem)
    return found


def textual(expression: str, node: Node, operator: str) -> Property | Text:
    """What may stand before IN, LIKE and the searches."""
    found = value(expression, node)
    if not isinstance(found, Property | Text):
        problem = f"{operator} looks at a text: a property was expected before it"
        raise fault(expression, found.at, problem)
    return found


def comparison(expression: str, sign: str, left: Node, right: Node) -> Comparison:
    """`left sign right`, where that can be asked."""
    first, second = value(expression, left), value(expression, right)
    if sign not in _EQUALITY:
        for found in (first, second):
            if isinstance(found, Text | Truth):
                problem = f"{sign} compares numbers; texts, TRUE and FALSE have only = and <>"
                raise fault(expression, found.at, problem)
    one, other = _kind(first), _kind(second)
    if one is not None and other is not None and one != other:
        problem = f"{one} is never equal to {other}; write both alike, or name a property"
        if isinstance(first, Arithmetic):
            problem += " (a name with + - * or / in it stands in backticks)"
        raise fault(expression, second.at, problem)
    return Comparison(first.at, sign, first, second)


def between(expression: str, node: Node, low: Node, high: Node) -> Between:
    """`node BETWEEN low AND high`, where that can be asked."""
    found = Between(
        node.at, numeric(expression, node), numeric(expression, low), numeric(expression, high)
    )
    match found:
        case Between(low=Number(value=least), high=Number(at=at, value=most)) if least > most:
            problem = f"nothing is between {least} and {most}; the lower bound stands first"
            raise fault(expression, at, problem)
    return found


def check_pattern(expression: str, at: int, pattern: str, escape: str | None) -> None:
    """Raise `FilterIllegal` if the pattern of a LIKE escapes what needs no escape, or its end."""
    if escape is None:
        return
    rest = pattern.replace(escape + escape, "").replace(escape + "%", "").replace(escape + "_", "")
    if escape in rest:
        problem = f"{escape!r} may only stand before %, _ and itself in this pattern"
        raise fault(expression, at, problem)


def _kind(node: Value) -> str | None:
    """What a value is; None for a property, which is read as what it is compared with."""
    match node:
        case Text():
            return "a text"
        case Truth():
            return "TRUE or FALSE"
        case Property():
            return None
        case _:
            return "a number"
