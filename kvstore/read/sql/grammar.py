"""The grammar of SQL filters, and the faults of texts that do not follow it.

The idea: lark makes an LALR(1) parser of the grammar below. Whenever a rule is complete, the parser
calls the method of the compiler that has the rule's name, so that a text becomes functions in one
pass, without a tree. Parentheses hold a value or a condition alike; the compiler checks which of
the two is needed. Importing lark and making the parser takes longer than all else in this package,
so this module is imported when the first filter is made.

Invariants: the parser keeps its own stack, so no text makes Python recurse; `DEPTH_MAX` bounds the
depth of the functions when they are asked. Any number of threads may parse at once: the parser and
the compiler keep nothing of a text. A text gives a test or raises `FilterIllegal`, nothing else.
"""

from __future__ import annotations

from typing import Final

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from kvstore.read.sql.compiler import RULES, Test, WrongAt
from kvstore.read.sql.filter_faults import check_length, fault

DEPTH_MAX: Final = 100
"""Open parentheses. Each takes up to three of the 1,000 frames that Python allows."""

# No text fits two terminals at one place, so their order does not matter; but for a comment, which
# lark tries first because it may be longest. A text is `[^']*(?:''[^']*)*` and not
# `(?:[^']|'')*`: there is one way to match it, so the time is linear; the lookahead keeps an open
# text from being taken up to one of its doubled quotes.
_GRAMMAR: Final = r"""
    start: disjunction
    ?disjunction: conjunction (_OR conjunction)*
    ?conjunction: negation (_AND negation)*
    ?negation: predicate | NOT+ predicate -> negated
    ?predicate: sum
        | sum COMPARISON sum -> comparison
        | sum [NOT] BETWEEN sum _AND sum -> between
        | sum [NOT] IN "(" TEXT ("," TEXT)* ")" -> one_of
        | sum [NOT] LIKE TEXT [_ESCAPE TEXT] -> like
        | sum [NOT] SEARCH TEXT -> search
        | sum IS [NOT] NULL -> is_null
    ?sum: product | product (SIGN product)+ -> arithmetic
    ?product: operand | operand (FACTOR operand)+ -> arithmetic
    ?operand: atom | SIGN+ atom -> signed | SIGN* NUMBER -> number
    ?atom: NAME -> name | TEXT -> text | TRUTH -> truth | NULL -> truth | "(" disjunction ")"

    NAME: /(?:[^\W\d]|\$)(?:[\w$]|\.(?=[\w$]))*|`[^`]+`/
    TEXT: /'[^']*(?:''[^']*)*'(?!')/
    NUMBER: /(?:0[xX][0-9a-fA-F]+[lL]?
              |(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?
              |[0-9]+(?:[eE][+-]?[0-9]+[dDfF]?|[dDfFlL])?
            )(?![\w$.])/x
    COMPARISON: /<>|<=|>=|<|>|=(?!=)/
    SIGN: /[+-]/
    FACTOR: /\*|\/(?!\*)/
    SPACE: /[ \t\n\r\f]+|--[^\n\r]*|\/\*(?s:.)*?\*\//
    %ignore SPACE
    %declare _AND BETWEEN _ESCAPE IN IS LIKE NOT NULL _OR SEARCH TRUTH
"""

KEYWORDS: Final = {word: word for word in ("BETWEEN", "IN", "IS", "LIKE", "NOT", "NULL")} | {
    "AND": "_AND",
    "OR": "_OR",
    "ESCAPE": "_ESCAPE",
    **dict.fromkeys(("CONTAINS", "ENDSWITH", "STARTSWITH"), "SEARCH"),
    **dict.fromkeys(("FALSE", "TRUE"), "TRUTH"),
}
_DEEPER: Final = {"LPAR": 1, "RPAR": -1}


def _keyword(token: Token) -> Token:
    """A name, or the keyword that it is."""
    # Only ASCII: upper() makes the keyword IS of a dotless i and an s as well.
    terminal = KEYWORDS.get(token.upper()) if token.isascii() else None
    token.type = terminal or "NAME"
    return token


_LARK: Final = Lark(
    _GRAMMAR,
    parser="lalr",
    # Not the contextual one, which would take a keyword as a name where no keyword may stand.
    lexer="basic",
    transformer=RULES,
    lexer_callbacks={"NAME": _keyword},
)
# At its first text lark completes its lexer, which threads must not do at once: so while importing.
_LARK.parse("TRUE")


def compile_filter(expression: str) -> Test:
    """A test of whether an expression is true for a message's properties; `FilterIllegal` with the
    place of its first fault.
    """
    check_length(expression)
    try:
        return _parsed(expression)
    except WrongAt as e:
        at, problem = e.args
    raise fault(expression, at, problem)


def _parsed(expression: str) -> Test:
    parser = _LARK.parse_interactive(expression)
    depth = 0
    before, token = Token("", ""), Token("", "")
    try:
        for each in parser.iter_parse():
            before, token = token, each
            depth += _DEEPER.get(token.type, 0)
            if depth > DEPTH_MAX:
                problem = f"it is nested deeper than {DEPTH_MAX} levels; take out parentheses"
                raise WrongAt(token.start_pos, problem)
        before, token = token, Token("$END", "", len(expression))
        test: Test = parser.feed_token(token)
    except UnexpectedCharacters as e:
        raise WrongAt(e.pos_in_stream, _advice(expression, e.pos_in_stream or 0)) from None
    except UnexpectedToken:
        raise WrongAt(token.start_pos, _misplaced(token, before, parser)) from None
    return test


# --- faults: a token that may not stand where it does ---

_OPERAND: Final = "a property, a number, a text in single quotes, TRUE, FALSE"
_OPERATORS: Final = frozenset(
    {"BETWEEN", "COMPARISON", "FACTOR", "IN", "IS", "LIKE", "NOT", "SEARCH", "SIGN"}
)
_FOUND: Final = {"$END": "the end", "NAME": "a name", "TEXT": "a text", "NUMBER": "a number"}
_WANTED: Final[dict[frozenset[str], str]] = {
    frozenset({"NOT", "NULL"}): "NULL or NOT NULL",
    frozenset({"NULL"}): "NULL",
    frozenset({"LPAR"}): "( and texts in single quotes",
    frozenset({"COMMA", "RPAR"}): "a comma or )",
    frozenset(
        {"BETWEEN", "IN", "LIKE", "SEARCH"}
    ): "IN, LIKE, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH",
}


def _misplaced(token: Token, before: Token, parser: InteractiveParser) -> str:
    accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]  # lark has no type here
    for joint in ("_AND", "_OR"):
        if joint in accepted:
            # The token completes the part before it; faults in that part come first.
            parser.copy(deepcopy_values=False).feed_token(Token(joint, ""))  # type: ignore[no-untyped-call]  # as above
    if token.type in _OPERATORS and "_OR" in accepted:
        return "what stands before it is a condition already; join conditions with AND or OR"
    # A text or name may be long, and is shown as what is near.
    found = _FOUND.get(token.type, token.upper())
    if "NAME" in accepted and "NOT" not in accepted:
        return f"a value was expected, not {found}: {_OPERAND} or ("
    return f"{_wanted(before, accepted)} was expected, not {found}"


def _wanted(before: Token, accepted: set[str]) -> str:
    if "NAME" in accepted:
        return f"{_OPERAND}, NOT or ("
    if accepted == {"TEXT"}:
        if before.type == "_ESCAPE":
            return "one character in single quotes"
        of_digits = " (IN compares texts, also those of digits)" if before in ("(", ",") else ""
        return f"a text in single quotes{of_digits}"
    if "$END" in accepted:
        return "an operator such as =, IN, AND or OR, or the end,"
    if "_AND" in accepted:
        return "an operator or )" if "_OR" in accepted else "AND and the upper bound"
    return _WANTED.get(frozenset(accepted), "an operator or )")


# --- faults: no token begins here ---

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
