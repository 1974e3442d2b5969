"""Parsing: tokens -> tree, with every fault told at its place.

The idea: operators have ranks (OR lowest, then AND, NOT, comparisons, + and -, * and /), and one
function takes an operand and then every operator above a given rank. Parentheses hold a value or a
condition alike, so which of the two a node is gets checked where it is used (`checks`).

Invariants: no text makes it recurse deeper than `DEPTH_MAX`, and the tree is at most three nodes
a level deep; a text gives a condition or raises `FilterIllegal`, nothing else."""

from __future__ import annotations

from typing import Final

from kvstore.consume.sql import checks
from kvstore.consume.sql.faults import check_length, fault
from kvstore.consume.sql.lexer import END, INTEGER_MAX, NAME, NUMBER, TEXT, tokens, too_large
from kvstore.consume.sql.tree import (
    And,
    Arithmetic,
    Condition,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Number,
    Or,
    Property,
    Search,
    Text,
    Truth,
    Where,
)
from kvstore.errors import FilterIllegal

DEPTH_MAX: Final = 100
"""Operands inside operands. A level takes up to four of the 1,000 frames that Python allows."""

_NOT: Final = 2
_PREDICATE: Final = 3
_TERM: Final = 4
_FACTOR: Final = 5
_COMPARISONS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
_SEARCHES: Final = frozenset(Where)
_NEGATABLE: Final = frozenset({"IN", "LIKE", "BETWEEN"}) | _SEARCHES
_RANKS: Final = (
    {"OR": 1, "AND": 2, "+": _TERM, "-": _TERM, "*": _FACTOR, "/": _FACTOR}
    | dict.fromkeys(_COMPARISONS | _NEGATABLE, _PREDICATE)
    # Behind an operand: the beginning of NOT IN and its like.
    | {"IS": _PREDICATE, "NOT": _PREDICATE}
)
_SIGNS: Final = frozenset({"+", "-"})
_TRUTHS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_OPERAND: Final = "a property, a number, a text in single quotes, TRUE, FALSE, NOT or ("


def parse(expression: str) -> Condition:
    """The tree of an expression; `FilterIllegal` with the place of its first fault."""
    check_length(expression)
    return _Parser(expression).whole()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokens(expression)
        self._token = next(self._tokens)
        self._depth = 0

    def whole(self) -> Condition:
        node = self._operation(0)
        if self._token.kind != END:
            raise self._expected("an operator such as =, IN, AND or OR, or the end,")
        return checks.condition(self._expression, node)

    # --- tokens ---

    def _next(self) -> None:
        self._token = next(self._tokens)

    def _take(self, kind: str, what: str) -> str:
        """Step over a token of this kind, and return its word."""
        token = self._token
        if token.kind != kind:
            raise self._expected(what)
        self._next()
        return token.word

    def _expected(self, what: str) -> FilterIllegal:
        kind = self._token.kind
        # A text or name may be long, and is shown as what is near.
        found = {END: "the end", NAME: "a name", TEXT: "a text", NUMBER: "a number"}.get(kind, kind)
        return fault(self._expression, self._token.at, f"{what} was expected, not {found}")

    # --- operators, by rank ---

    def _operation(self, floor: int) -> Node:
        """An operand and all that follows it with operators above the rank `floor`."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            problem = f"it is nested deeper than {DEPTH_MAX} levels; take out parentheses"
            raise fault(self._expression, self._token.at, problem)
        node = self._operand()
        while (rank := _RANKS.get(self._token.kind, 0)) > floor:
            if rank == _PREDICATE:
                node = self._predicate(node)
            elif rank > _PREDICATE:
                node = self._arithmetic(node, rank)
            else:
                node = self._junction(node, rank)
        self._depth -= 1
        return node

    def _junction(self, left: Node, rank: int) -> Condition:
        """Conditions joined by AND, or by OR."""
        kind = self._token.kind
        terms = [checks.condition(self._expression, left)]
        while self._token.kind == kind:
            self._next()
            terms.append(checks.condition(self._expression, self._operation(rank)))
        return (And if kind == "AND" else Or)(left.at, tuple(terms))

    def _arithmetic(self, left: Node, rank: int) -> Arithmetic:
        first = checks.numeric(self._expression, left)
        steps = []
        while _RANKS.get(self._token.kind) == rank:
            sign = self._token.kind
            self._next()
            steps.append((sign, checks.numeric(self._expression, self._operation(rank))))
        return Arithmetic(left.at, first, tuple(steps))

    # --- predicates ---

    def _predicate(self, left: Node) -> Condition:
        if not isinstance(left, Property | Number | Text | Truth | Arithmetic):
            problem = "what stands before it is a condition already; join conditions with AND or OR"
            raise fault(self._expression, self._token.at, problem)
        kind = self._token.kind
        self._next()
        if kind in _COMPARISONS:
            right = self._operation(_PREDICATE)
            return checks.comparison(self._expression, kind, left, right)
        if kind == "IS":
            return self._is_null(left)
        if kind != "NOT":
            return self._negatable(kind, left)
        kind = self._token.kind
        if kind not in _NEGATABLE:
            raise self._expected("IN, LIKE, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH")
        self._next()
        return Not(left.at, self._negatable(kind, left))

    def _negatable(self, kind: str, left: Node) -> Condition:
        """What may have a NOT before its word."""
        if kind == "BETWEEN":
            low = self._operation(_PREDICATE)
            self._take("AND", "AND and the upper bound")
            return checks.between(self._expression, left, low, self._operation(_PREDICATE))
        value = checks.textual(self._expression, left, kind)
        if kind == "IN":
            return In(left.at, value, self._options())
        at = self._token.at
        word = self._take(TEXT, "a text in single quotes")
        if kind == "LIKE":
            return self._like(value, at, word)
        if not word:
            problem = f"{kind} needs a text that is not empty: RocketMQ finds the empty one nowhere"
            raise fault(self._expression, at, problem)
        return Search(left.at, value, Where(kind), word)

    def _options(self) -> frozenset[str]:
        """The texts of an IN."""
        self._take("(", "( and texts in single quotes")
        what = "a text in single quotes (IN compares texts, also those of digits)"
        options = {self._take(TEXT, what)}
        while self._token.kind == ",":
            self._next()
            options.add(self._take(TEXT, what))
        self._take(")", "a comma or )")
        return frozenset(options)

    def _like(self, value: Property | Text, at: int, pattern: str) -> Like:
        escape = None
        if self._token.kind == "ESCAPE":
            self._next()
            escape_at = self._token.at
            escape = self._take(TEXT, "one character in single quotes")
            if len(escape) != 1:
                problem = f"ESCAPE takes one character, not {len(escape)}"
                raise fault(self._expression, escape_at, problem)
        checks.check_pattern(self._expression, at, pattern, escape)
        return Like(value.at, value, pattern, escape)

    def _is_null(self, left: Node) -> Condition:
        negative = self._token.kind == "NOT"
        if negative:
            self._next()
        self._take("NULL", "NULL" if negative else "NULL or NOT NULL")
        if not isinstance(left, Property):
            raise fault(self._expression, left.at, "IS NULL asks for a property, by its name alone")
        found = IsNull(left.at, left)
        return Not(left.at, found) if negative else found

    # --- operands ---

    def _operand(self) -> Node:
        token = self._token
        if token.kind == "NOT":
            return self._negation()
        if token.kind in _SIGNS:
            return self._signed()
        if token.kind == "(":
            self._next()
            node = self._operation(0)
            self._take(")", "an operator or )")
            return node
        if token.kind == NUMBER:
            return self._number(1)
        if token.kind in _TRUTHS:
            self._next()
            return Truth(token.at, _TRUTHS[token.kind])
        if token.kind == NAME:
            self._next()
            return Property(token.at, token.word)
        return Text(token.at, self._take(TEXT, _OPERAND))

    def _negation(self) -> Not:
        """One NOT or several, taken in a loop; two are none, but make a condition of a property."""
        at, count = self._token.at, 0
        while self._token.kind == "NOT":
            self._next()
            count += 1
        node = Not(at, checks.condition(self._expression, self._operation(_NOT)))
        return node if count % 2 else Not(at, node)

    def _signed(self) -> Node:
        """A number with its signs; of anything else, 0 + it or 0 - it."""
        at, sign = self._token.at, 1
        while self._token.kind in _SIGNS:
            sign = -sign if self._token.kind == "-" else sign
            self._next()
        if self._token.kind == NUMBER:
            return self._number(sign)
        node = checks.numeric(self._expression, self._operand())
        return Arithmetic(at, Number(at, 0), (("+" if sign > 0 else "-", node),))

    def _number(self, sign: int) -> Number:
        token = self._token
        value = sign * token.number
        if isinstance(value, int) and value > INTEGER_MAX:
            raise too_large(self._expression, token.at)
        self._next()
        return Number(token.at, value)
