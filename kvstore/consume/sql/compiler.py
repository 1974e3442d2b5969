"""Compiling: tree -> one function of a message's properties.

The idea: a filter wants to know one thing, whether the expression is true; "false" and "unknown"
are the same to it. So each condition is compiled into a test of whether it is true, or (below an
odd number of NOTs) of whether it is false, and it is unknown where neither holds. NOT only swaps
the two, and De Morgan's laws, which hold for three values as for two, turn AND into OR. Nothing
that runs for a message knows of a third value.

    what             is true when           is false when
    NOT c            c is false             c is true
    c AND d          c and d are true       c or d is false
    c OR d           c or d is true         c and d are false
    a comparison     both sides are there   both sides are there
                     and it holds           and it does not

Invariants: a test never raises and gives a bool; a condition is never both true and false; what is
compiled is as large as the tree, and as deep."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvstore.consume.sql.convert import fitting, number_of, truth_of
from kvstore.consume.sql.like import compile_like
from kvstore.consume.sql.tree import (
    And,
    Arithmetic,
    Between,
    Comparison,
    Condition,
    In,
    IsNull,
    Like,
    Not,
    Number,
    Or,
    Property,
    Search,
    Text,
    Truth,
    Value,
    Where,
)

Properties = Mapping[str, str]
Test = Callable[[Properties], bool]
Numeric = Callable[[Properties], int | float | None]
_Compare = Callable[[Any, Any], bool]
_Step = tuple[Callable[[Any, Any], int | float], Numeric]

_COMPARE: Final[dict[str, _Compare]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPPOSITE: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_CALCULATE: Final[dict[str, Callable[[Any, Any], int | float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def compile_condition(node: Condition, wanted: bool) -> Test:
    """A test of whether a condition is true (`wanted`), or of whether it is false."""
    match node:
        case Not(condition=inner):
            return compile_condition(inner, not wanted)
        case And(terms=terms) | Or(terms=terms):
            tests: list[Test] = []
            for term in terms:
                # No comprehension: until Python 3.12 it is a frame more for each level of depth.
                tests.append(compile_condition(term, wanted))  # noqa: PERF401  # see above
            return _all(tests) if isinstance(node, And) is wanted else _any(tests)
        case Truth(value=value):
            return _constant(value is wanted)
        case Property(name=name):
            return _truth(name, wanted)
        case _:
            return _predicate(node, wanted)


def _predicate(node: Comparison | Between | In | Like | Search | IsNull, wanted: bool) -> Test:
    match node:
        case Comparison(sign=sign, left=left, right=right):
            return _comparison(sign if wanted else _OPPOSITE[sign], left, right)
        case Between():
            return _between(node, wanted)
        case In(value=value, options=options):
            return _about(value, options.__contains__, wanted)
        case Like(value=value, pattern=pattern, escape=escape):
            return _about(value, compile_like(pattern, escape), wanted)
        case Search(value=value):
            return _about(value, _search(node), wanted)
        case IsNull(value=Property(name=name)):
            return lambda properties: (name not in properties) is wanted


# --- logic ---


def _constant(result: bool) -> Test:
    return lambda properties: result


def _truth(name: str, wanted: bool) -> Test:
    def test(properties: Properties) -> bool:
        text = properties.get(name)
        return text is not None and truth_of(text) is wanted

    return test


def _all(tests: list[Test]) -> Test:
    if len(tests) == 2:
        # Nearly every AND; half the time that the loop takes.
        first, second = tests
        return lambda properties: first(properties) and second(properties)

    def test(properties: Properties) -> bool:
        for each in tests:  # noqa: SIM110  # all() adds a frame and a generator to every message
            if not each(properties):
                return False
        return True

    return test


def _any(tests: list[Test]) -> Test:
    if len(tests) == 2:
        first, second = tests
        return lambda properties: first(properties) or second(properties)

    def test(properties: Properties) -> bool:
        for each in tests:  # noqa: SIM110  # as above: any() is slower
            if each(properties):
                return True
        return False

    return test


# --- comparisons ---


def _comparison(sign: str, left: Value, right: Value) -> Test:
    """A test of whether a comparison holds, its sides being there."""
    match left, right:
        case (Text() | Truth(), Text() | Truth()):
            return _constant(_COMPARE[sign](left.value, right.value))
        case (Property(name=name), Text(value=text)) | (Text(value=text), Property(name=name)):
            return _equal_text(name, text, sign == "=")
        case (Property(name=name), Truth(value=truth)) | (Truth(value=truth), Property(name=name)):
            return _truth(name, truth is (sign == "="))
        case (Property(name=name), Property(name=other)) if sign in ("=", "<>"):
            return _equal_properties(name, other, sign == "=")
        case (Property(name=name), Number(value=number)):
            return _compare_number(name, _COMPARE[sign], number)
        case (Number(value=number), Property(name=name)):
            return _compare_number(name, _COMPARE[_MIRRORED[sign]], number)
        case _:
            return _compare_numbers(_numeric(left), _COMPARE[sign], _numeric(right))


def _equal_text(name: str, text: str, wanted: bool) -> Test:
    if wanted:
        return lambda properties: properties.get(name) == text

    def differs(properties: Properties) -> bool:
        found = properties.get(name)
        return found is not None and found != text

    return differs


def _equal_properties(name: str, other: str, wanted: bool) -> Test:
    def test(properties: Properties) -> bool:
        one, two = properties.get(name), properties.get(other)
        return one is not None and two is not None and (one == two) is wanted

    return test


def _compare_number(name: str, compare: _Compare, number: int | float) -> Test:
    def test(properties: Properties) -> bool:
        text = properties.get(name)
        if text is None:
            return False
        found = number_of(text)
        return found is not None and compare(found, number)

    return test


def _compare_numbers(left: Numeric, compare: _Compare, right: Numeric) -> Test:
    def test(properties: Properties) -> bool:
        one = left(properties)
        if one is None:
            return False
        two = right(properties)
        return two is not None and compare(one, two)

    return test


def _between(node: Between, wanted: bool) -> Test:
    """`v >= low AND v <= high`, whose falsehood needs only one of the bounds."""
    value, low, high = _numeric(node.value), _numeric(node.low), _numeric(node.high)

    def inside(properties: Properties) -> bool:
        found = value(properties)
        if found is None:
            return False
        least, most = low(properties), high(properties)
        return least is not None and most is not None and least <= found <= most

    def outside(properties: Properties) -> bool:
        found = value(properties)
        if found is None:
            return False
        least, most = low(properties), high(properties)
        return (least is not None and found < least) or (most is not None and found > most)

    return inside if wanted else outside


def _numeric(node: Value) -> Numeric:
    """A value as a number; None where a property is missing or no number, or none results."""
    match node:
        case Number(value=number):
            return lambda properties: number
        case Property(name=name):

            def read(properties: Properties) -> int | float | None:
                text = properties.get(name)
                return None if text is None else number_of(text)

            return read
        case Arithmetic(first=first, steps=steps):
            begin = _numeric(first)
            rest: list[_Step] = []
            for sign, operand in steps:
                # No comprehension, for the frames: see `compile_condition`.
                rest.append((_CALCULATE[sign], _numeric(operand)))
            return _arithmetic(begin, rest)
        case _:
            raise AssertionError(f"the parser lets only numbers in here, not {node}")


def _arithmetic(first: Numeric, steps: list[_Step]) -> Numeric:
    def calculate(properties: Properties) -> int | float | None:
        result = first(properties)
        for apply, operand in steps:
            second = operand(properties)
            if result is None or second is None:
                return None
            try:
                result = fitting(apply(result, second))
            except ZeroDivisionError:
                return None
        return result

    return calculate


# --- texts ---


def _about(value: Property | Text, holds: Callable[[str], bool], wanted: bool) -> Test:
    """A test of whether something holds for a text that is there, or of whether it does not."""
    if isinstance(value, Text):
        return _constant(holds(value.value) is wanted)
    name = value.name

    def test(properties: Properties) -> bool:
        text = properties.get(name)
        return text is not None and holds(text) is wanted

    return test


def _search(node: Search) -> Callable[[str], bool]:
    part = node.part
    match node.where:
        case Where.CONTAINS:
            return lambda text: part in text
        case Where.STARTSWITH:
            return lambda text: text.startswith(part)
        case Where.ENDSWITH:
            return lambda text: text.endswith(part)
