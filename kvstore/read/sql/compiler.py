"""The compiler: each rule of the grammar becomes functions of a message's properties.

The idea: a filter wants to know one thing, whether the expression is true; "false" and "unknown"
are the same to it. So a condition is two tests, one of whether it is true and one of whether it is
false, and it is unknown where neither holds. Nothing that runs for a message has a third value.

    what             is true when           is false when
    NOT c            c is false             c is true
    c AND d          c and d are true       c or d is false
    c OR d           c or d is true         c and d are false
    a comparison     both sides are there   both sides are there
                     and it holds           and it does not

Invariants: a rule keeps nothing of a text, so threads share them; it gives a node that can be asked
or raises `WrongAt`. A test never raises; a condition is never both true and false."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lark import Token, Transformer, v_args

from kvstore.read.sql.texts import compile_like, fitting, number_of

Properties = Mapping[str, str]
Test = Callable[[Properties], bool]
Numeric = Callable[[Properties], int | float | None]

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUALITY: Final = frozenset({"=", "<>"})
_OPPOSITE: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_CALCULATE: Final[dict[str, Callable[[Any, Any], int | float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_DIGITS_MAX: Final = 19
"""Digits of the largest 64-bit integer; Python refuses to read very many."""
_TOO_LARGE: Final = (
    "this integer has more than 64 bits; the range is -9223372036854775808 to 9223372036854775807, "
    "larger ones can be written as doubles, such as 1e20"
)

_PROPERTY: Final = "a property"
_NUMBER: Final = "a number"
_TEXT: Final = "a text"
_TRUTH: Final = "TRUE or FALSE"
_NULL: Final = "NULL"
_CONDITION: Final = "a condition"


class WrongAt(Exception):
    """A fault in an expression: the character at which it is, and the problem."""


class Node(NamedTuple):
    """A part of an expression, which begins at `at`."""

    at: int
    kind: str
    value: Any = None
    """A property's name, or a written value; None of a calculation."""
    number: Numeric | None = None
    """Its number, or None for a message where a property is missing or none results."""
    tests: tuple[Test, Test] | None = None
    """Whether it is true, and whether it is false."""


# --- the parts that may stand in a place ---


def _tests(node: Node) -> tuple[Test, Test]:
    if node.tests is None:
        problem = "this is a value, where a condition was expected; compare it with something"
        raise WrongAt(node.at, problem)
    return node.tests


def _value(node: Node) -> Node:
    if node.kind == _CONDITION:
        problem = "this is a condition, where a value was expected; join conditions with AND or OR"
        raise WrongAt(node.at, problem)
    if node.kind == _NULL:
        raise WrongAt(node.at, "nothing compares with NULL; write IS NULL or IS NOT NULL")
    return node


def _number(node: Node) -> Numeric:
    number = _value(node).number
    if number is None:
        problem = "a number or a property was expected; a number is written without quotes"
        raise WrongAt(node.at, problem)
    return number


def _subject(node: Node, word: Token) -> Node:
    """The value before the word of a predicate."""
    if node.kind == _CONDITION:
        problem = "what stands before it is a condition already; join conditions with AND or OR"
        raise WrongAt(_at(word), problem)
    return node


def _at(token: Token) -> int:
    assert token.start_pos is not None, "the parser gives every token its place"
    return token.start_pos


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _condition(at: int, negation: object, is_true: Test, is_false: Test) -> Node:
    return Node(at, _CONDITION, tests=(is_false, is_true) if negation else (is_true, is_false))


def _written(token: Token) -> int | float:
    """A number without its sign."""
    word = token.lower()
    base, digits = (16, word[2:].rstrip("l")) if word[:2] == "0x" else (10, word.rstrip("l"))
    if base == 10 and not digits.isdecimal():
        value = float(word.rstrip("df"))
        if value == float("inf"):
            raise WrongAt(_at(token), "this number is above the largest double, about 1.8e308")
        return value
    if base == 10 and len(digits) > 1 and digits[0] == "0":
        problem = "a number with a leading 0 would be octal to some readers; write it without the "
        raise WrongAt(_at(token), problem + "0, or a text in single quotes")
    if len(digits.lstrip("0")) > _DIGITS_MAX:
        raise WrongAt(_at(token), _TOO_LARGE)
    return int(digits, base)


# --- the rules ---

rule = v_args(inline=True)


class _Rules(Transformer[Token, Test]):
    """A method for each rule of the grammar; the parser calls it when the rule is complete."""

    @rule
    def start(self, node: Node) -> Test:
        return _tests(node)[0]

    @rule
    def disjunction(self, *terms: Node) -> Node:
        true, false = zip(*map(_tests, terms), strict=True)
        return _condition(terms[0].at, None, _joined(true, True), _joined(false, False))

    @rule
    def conjunction(self, *terms: Node) -> Node:
        true, false = zip(*map(_tests, terms), strict=True)
        return _condition(terms[0].at, None, _joined(true, False), _joined(false, True))

    @rule
    def negated(self, *row: Any) -> Node:
        # Two NOTs are none, but make a condition of a property.
        return _condition(_at(row[0]), len(row) % 2 == 0, *_tests(row[-1]))

    @rule
    def comparison(self, left: Node, word: Token, right: Node) -> Node:
        sign: str = word.value
        for node in (_value(_subject(left, word)), _value(right)):
            if sign not in _EQUALITY and node.kind in (_TEXT, _TRUTH):
                problem = f"{sign} compares numbers; texts, TRUE and FALSE have only = and <>"
                raise WrongAt(node.at, problem)
        if _PROPERTY not in (left.kind, right.kind) and left.kind != right.kind:
            problem = f"is never equal to {right.kind}; write both alike, or name a property"
            if left.kind == _NUMBER and left.value is None:
                problem += " (a name with + - * or / in it stands in backticks)"
            raise WrongAt(right.at, f"{left.kind} {problem}")
        is_true, is_false = (_compared(left, s, right) for s in (sign, _OPPOSITE[sign]))
        return _condition(left.at, None, is_true, is_false)

    @rule
    def between(self, node: Node, no: Token | None, word: Token, low: Node, high: Node) -> Node:
        sides = _number(_subject(node, no or word)), _number(low), _number(high)
        is_written = low.kind == high.kind == _NUMBER and None not in (low.value, high.value)
        if is_written and low.value > high.value:
            problem = f"nothing is between {low.value} and {high.value}; the lower bound stands "
            raise WrongAt(high.at, problem + "first")
        return _condition(node.at, no, _inside(*sides), _outside(*sides))

    @rule
    def one_of(self, node: Node, no: Token | None, word: Token, *texts: Token) -> Node:
        return _searched(node, no, word, frozenset(map(_unquoted, texts)).__contains__)

    @rule
    def like(
        self, node: Node, no: Token | None, word: Token, text: Token, escape: Token | None
    ) -> Node:
        pattern, sign = _unquoted(text), None
        if escape is not None:
            sign = _unquoted(escape)
            if len(sign) != 1:
                raise WrongAt(_at(escape), f"ESCAPE takes one character, not {len(sign)}")
            rest = pattern.replace(sign + sign, "").replace(sign + "%", "").replace(sign + "_", "")
            if sign in rest:
                problem = f"{sign!r} may only stand before %, _ and itself in this pattern"
                raise WrongAt(_at(text), problem)
        return _searched(node, no, word, compile_like(pattern, sign))

    @rule
    def search(self, node: Node, no: Token | None, word: Token, text: Token) -> Node:
        part, kind = _unquoted(text), word.upper()
        if not part:
            problem = f"{kind} needs a text that is not empty: RocketMQ finds the empty one nowhere"
            raise WrongAt(_at(text), problem)
        finds: dict[str, Callable[[str], bool]] = {
            "CONTAINS": lambda text: part in text,
            "STARTSWITH": lambda text: text.startswith(part),
            "ENDSWITH": lambda text: text.endswith(part),
        }
        return _searched(node, no, word, finds[kind])

    @rule
    def is_null(self, node: Node, word: Token, no: Token | None, _: Token) -> Node:
        if _subject(node, word).kind != _PROPERTY:
            raise WrongAt(node.at, "IS NULL asks for a property, by its name alone")
        name = node.value
        return _condition(node.at, no, lambda found: name not in found, lambda found: name in found)

    @rule
    def arithmetic(self, first: Node, *rest: Any) -> Node:
        signs, operands = rest[::2], map(_number, rest[1::2])
        number = _calculated(
            _number(first), [_CALCULATE[sign.value] for sign in signs], list(operands)
        )
        return Node(first.at, _NUMBER, number=number)

    @rule
    def signed(self, *row: Any) -> Node:
        # Signs before anything but a number: 0 + it or 0 - it.
        sign = operator.sub if row.count("-") % 2 else operator.add
        number = _calculated(lambda found: 0, [sign], [_number(row[-1])])
        return Node(_at(row[0]), _NUMBER, number=number)

    @rule
    def number(self, *row: Token) -> Node:
        token, sign = row[-1], -1 if row.count("-") % 2 else 1
        value = sign * _written(token)
        if fitting(value) is None:
            raise WrongAt(_at(token), _TOO_LARGE)
        return Node(_at(token), _NUMBER, value, lambda found: value)

    @rule
    def name(self, token: Token) -> Node:
        name = token.strip("`")
        return Node(
            _at(token),
            _PROPERTY,
            name,
            lambda found: None if (text := found.get(name)) is None else number_of(text),
            (_says(name, "true"), _says(name, "false")),
        )

    @rule
    def text(self, token: Token) -> Node:
        return Node(_at(token), _TEXT, _unquoted(token))

    @rule
    def truth(self, token: Token) -> Node:
        word = token.upper()
        tests = _constant(word == "TRUE"), _constant(word == "FALSE")
        return Node(_at(token), _NULL if word == "NULL" else _TRUTH, word, tests=tests)


RULES: Final = _Rules()


# --- the functions: conditions ---


def _constant(result: bool) -> Test:
    return lambda found: result


def _says(name: str, word: str) -> Test:
    return lambda found: (text := found.get(name)) is not None and text.lower() == word


def _joined(tests: Sequence[Test], decisive: bool) -> Test:
    """AND (what is False decides) or OR (what is True decides)."""
    if len(tests) == 2:
        # Nearly every one; half the time that the loop takes.
        first, second = tests
        if decisive:
            return lambda found: first(found) or second(found)
        return lambda found: first(found) and second(found)

    def test(found: Properties) -> bool:
        for each in tests:
            if each(found) is decisive:
                return decisive
        return not decisive

    return test


def _compared(left: Node, sign: str, right: Node) -> Test:
    """A test of whether a comparison holds, its sides being there."""
    if left.kind != _PROPERTY and right.kind == _PROPERTY:
        left, sign, right = right, _MIRRORED[sign], left
    compare, is_equality = _COMPARE[sign], sign in _EQUALITY
    name, other = left.value, right.value
    if left.kind == _PROPERTY:
        if right.kind == _TEXT:
            if sign == "=":
                return lambda found: found.get(name) == other
            return lambda found: (text := found.get(name)) is not None and text != other
        if right.kind == _TRUTH:
            return _says(name, "true" if (other == "TRUE") is (sign == "=") else "false")
        if right.kind == _PROPERTY and is_equality:
            return lambda found: (
                (text := found.get(name)) is not None
                and (second_text := found.get(other)) is not None
                and compare(text, second_text)
            )
        if right.kind == _NUMBER and other is not None:
            return lambda found: (
                (text := found.get(name)) is not None
                and (number := number_of(text)) is not None
                and compare(number, other)
            )
    if left.number is None or right.number is None:
        return _constant(compare(name, other))
    first, second = left.number, right.number
    return lambda found: (
        (one := first(found)) is not None
        and (two := second(found)) is not None
        and compare(one, two)
    )


def _inside(value: Numeric, low: Numeric, high: Numeric) -> Test:
    return lambda found: (
        (number := value(found)) is not None
        and (least := low(found)) is not None
        and (most := high(found)) is not None
        and least <= number <= most
    )


def _outside(value: Numeric, low: Numeric, high: Numeric) -> Test:
    # One of the bounds is enough.
    return lambda found: (
        (number := value(found)) is not None
        and (
            ((least := low(found)) is not None and number < least)
            or ((most := high(found)) is not None and number > most)
        )
    )


def _searched(node: Node, no: Token | None, word: Token, holds: Callable[[str], bool]) -> Node:
    """Whether something holds for a text that is there."""
    kind, name = _value(_subject(node, no or word))[1:3]
    if kind == _TEXT:
        result = holds(name)
        return _condition(node.at, no, _constant(result), _constant(not result))
    if kind != _PROPERTY:
        problem = f"{word.upper()} looks at a text: a property was expected before it"
        raise WrongAt(node.at, problem)
    return _condition(
        node.at,
        no,
        lambda found: (text := found.get(name)) is not None and holds(text),
        lambda found: (text := found.get(name)) is not None and not holds(text),
    )


# --- the functions: numbers ---


def _calculated(
    first: Numeric, signs: Sequence[Callable[[Any, Any], int | float]], rest: Sequence[Numeric]
) -> Numeric:
    steps = tuple(zip(signs, rest, strict=True))

    def calculate(found: Properties) -> int | float | None:
        result = first(found)
        for apply, operand in steps:
            second = operand(found)
            if result is None or second is None:
                return None
            try:
                result = fitting(apply(result, second))
            except ZeroDivisionError:
                return None
        return result

    return calculate
