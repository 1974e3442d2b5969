"""A bad expression is refused when it is made, with the place of the fault and what to do."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import CallerError, FilterIllegal, sql
from kvstore.read.sql.filter_faults import LENGTH_MAX
from kvstore.read.sql.grammar import DEPTH_MAX, KEYWORDS
from tests.read.test_sql import asks


def refused(expression: str) -> FilterIllegal:
    with pytest.raises(FilterIllegal) as caught:
        sql(expression)
    error = caught.value
    assert error.expression == expression
    assert 0 <= error.position <= len(expression)
    return error


@pytest.mark.parametrize(
    ("expression", "position", "said"),
    [
        ("", 0, "a property, a number"),
        ("   ", 3, "not the end"),
        ("amount >", 8, "not the end"),
        ("amount > > 5", 9, "not >"),
        ("amount > 5 AND", 14, "not the end"),
        ("amount > 5 region = 'eu'", 11, "an operator"),
        ("AND a", 0, "not AND"),
        ("a and between 2 and 10", 6, "not BETWEEN"),
        ("(a = 1", 6, "expected, not the end"),
        ("a = 1)", 5, "not )"),
        ("()", 1, "not )"),
        ("a IS", 4, "NULL or NOT NULL"),
        ("a IS NOT 5", 9, "NULL was expected"),
        ("a NOT = 5", 6, "IN, LIKE, BETWEEN"),
        ("a BETWEEN 1", 11, "the upper bound"),
        ("a BETWEEN 1 OR 2", 12, "the upper bound"),
        ("a IN 'x'", 5, "( and texts"),
        ("a IN ()", 6, "a text in single quotes"),
        ("a IN ('x',)", 10, "a text in single quotes"),
        ("a IN ('x' 'y')", 10, "a comma or )"),
        ("a IN (5)", 6, "IN compares texts"),
        ("a CONTAINS b", 11, "a text in single quotes"),
        ("a LIKE 5", 7, "a text in single quotes"),
        ("a LIKE 'x' ESCAPE", 17, "one character"),
        ("a = NOT b", 4, "TRUE, FALSE or ("),
        ("a + * b = 1", 4, "a value was expected, not *"),
        ("a BETWEEN 1 2", 12, "the upper bound"),
        ("(a = 1 b", 7, "an operator or )"),
        ("(a BETWEEN 1 AND 2", 18, "an operator or )"),
        ("a IN ('x' OR b)", 10, "a comma or )"),
    ],
)
def test_what_was_expected_is_told_with_its_place(
    expression: str, position: int, said: str
) -> None:
    error = refused(expression)
    assert (error.position, said in str(error)) == (position, True), str(error)


@pytest.mark.parametrize(
    ("expression", "position", "said"),
    [
        ("a == 5", 2, "write ="),
        ("a != 5", 2, "write <>"),
        ("!a", 0, "write NOT"),
        ("a && b", 2, "write AND"),
        ("a || b", 2, "write OR"),
        ("a % 2 = 0", 2, "no remainder"),
        ("a = 'eu", 4, "has no end"),
        ("a = 'it''s", 4, "has no end"),
        ('a = "eu"', 4, "single quotes"),
        ("`a = 5", 0, "backtick"),
        ("`` = 5", 0, "empty"),
        ("a /* b", 2, "close it with */"),
        ("a = #", 4, "'#' has no meaning"),
        ("a = 5x", 4, "no number"),
        ("a = 1.2.3", 4, "no number"),
        ("a = 0x", 4, "no number"),
        ("a = .", 4, "no number"),
        ("a = 5_000", 4, "no number"),
        ("a = 010", 4, "octal"),
        ("a = 1\u00a0", 5, "has no meaning"),
        ("x-region = 'eu'", 11, "in backticks"),
    ],
)
def test_what_another_language_would_allow_is_refused_with_advice(
    expression: str, position: int, said: str
) -> None:
    error = refused(expression)
    assert (error.position, said in str(error)) == (position, True), str(error)


@pytest.mark.parametrize(
    ("expression", "position", "said"),
    [
        ("5", 0, "compare it"),
        ("'eu'", 0, "compare it"),
        ("a + 1", 0, "compare it"),
        ("a = 1 AND 5", 10, "compare it"),
        ("5 OR a = 1", 0, "compare it"),
        ("NOT 'x'", 4, "compare it"),
        ("a = NULL", 4, "IS NULL"),
        ("NULL <> a", 0, "IS NULL"),
        ("a > 'x'", 4, "have only = and <>"),
        ("TRUE < a", 0, "have only = and <>"),
        ("5 = 'x'", 4, "never equal"),
        ("a + 1 = 'x'", 8, "never equal"),
        ("TRUE = 1", 7, "never equal"),
        ("a BETWEEN 'x' AND 'y'", 10, "without quotes"),
        ("a BETWEEN 10 AND 1", 17, "lower bound"),
        ("a NOT BETWEEN 10 AND 1", 21, "lower bound"),
        ("a + 'x' = 1", 4, "without quotes"),
        ("- TRUE = 1", 2, "without quotes"),
        ("- (a = 1) = 1", 3, "a value was expected"),
        ("(a = 1) + 1 = 2", 1, "a value was expected"),
        ("a = (b = 1)", 5, "a value was expected"),
        ("(a = 1) = b", 8, "join conditions"),
        ("1 < a < 5", 6, "join conditions"),
        ("a = b = c", 6, "join conditions"),
        ("a IS NULL IS NULL", 10, "join conditions"),
        ("a = NOT b", 4, "a value was expected"),
        ("5 IN ('x')", 0, "IN looks at a text"),
        ("a + 1 LIKE 'x'", 0, "LIKE looks at a text"),
        ("5 IS NULL", 0, "a property"),
        ("'x' IS NULL", 0, "a property"),
        ("a CONTAINS ''", 11, "not empty"),
        ("a NOT ENDSWITH ''", 15, "not empty"),
        ("a LIKE 'x' ESCAPE 'ab'", 18, "one character"),
        ("a LIKE 'x' ESCAPE ''", 18, "one character"),
        ("a LIKE 'x!' ESCAPE '!'", 7, "may only stand before"),
        ("a LIKE '!x' ESCAPE '!'", 7, "may only stand before"),
        ("a IS NULL + 1 = 2", 10, "join conditions"),
        ("a IN ('x') CONTAINS 'y'", 11, "join conditions"),
    ],
)
def test_what_could_never_be_meant_is_refused(expression: str, position: int, said: str) -> None:
    error = refused(expression)
    assert (error.position, said in str(error)) == (position, True), str(error)


@pytest.mark.parametrize(
    ("expression", "position", "said"),
    [
        ("a > 'x' b", 4, "have only = and <>"),
        ("a * 'x' 5", 4, "without quotes"),
        ("a BETWEEN 5 AND 1 b", 16, "lower bound"),
        ("a = 1 AND 5 b", 10, "compare it"),
        ("a LIKE 'x' ESCAPE 'ab' b", 18, "one character"),
        ("(a = b = ", 7, "join conditions"),
    ],
)
def test_of_two_faults_the_first_is_told(expression: str, position: int, said: str) -> None:
    error = refused(expression)
    assert (error.position, said in str(error)) == (position, True), str(error)


@pytest.mark.parametrize(
    "number",
    ["9223372036854775808", "-9223372036854775809", "0x8000000000000000", "9" * 5000, "1e309"],
)
def test_a_number_that_does_not_fit_is_refused(number: str) -> None:
    error = refused(f"a = {number}")
    assert error.position == 4 + number.startswith("-")


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775808", "1e308", "0x0"])
def test_the_largest_numbers_are_taken(number: str) -> None:
    sql(f"a = {number}")


def test_the_error_shows_the_text_and_what_stands_at_the_place() -> None:
    error = refused("amount > 5 AND regoin IN 'eu'")
    assert "\"amount > 5 AND regoin IN 'eu'\"" in str(error)
    assert "at character 25, near \"'eu'\"" in str(error)


def test_a_long_text_is_shown_around_the_place_only() -> None:
    error = refused("a = 1 AND " * 1000 + "b ! 5" + " AND a = 1" * 100)
    assert error.position == 10_002
    assert "b ! 5" in str(error)
    assert len(str(error)) < 400


def test_an_illegal_filter_is_a_callers_error() -> None:
    assert issubclass(FilterIllegal, CallerError)


@pytest.mark.parametrize("wrong", [5, None, b"a = 1", ["a"], {"a": 1}])
def test_what_is_no_text_is_a_callers_error(wrong: Any) -> None:
    with pytest.raises(CallerError, match="must be a text"):
        sql(wrong)


def test_a_text_is_as_long_as_it_may_be_and_no_longer() -> None:
    longest = "a = '" + "x" * (LENGTH_MAX - 6) + "'"
    assert len(longest) == LENGTH_MAX
    sql(longest)
    assert refused(longest + " ").position == LENGTH_MAX


@pytest.mark.parametrize("piece", ["(", "NOT ", "- ", "a AND ", "a = 1 OR (", "'", "/*", "9"])
def test_a_megabyte_of_anything_is_refused_for_its_length(piece: str) -> None:
    error = refused(piece * ((1 << 20) // len(piece)))
    assert (error.position, "are allowed" in str(error)) == (LENGTH_MAX, True)


NESTS: Final = {
    "parentheses": ("(", "a = 1", ")"),
    "logic": ("(b = 1 OR b = 2 AND NOT ", "a = 1", ")"),
    "left logic": ("(", "a = 1", " AND b = 1 OR b = 2)"),
    "negations": ("NOT (", "a = 1", ")"),
    "arithmetic": ("1 + 2 * - (", "a", ")"),
    "left arithmetic": ("-(", "a", ") * 2 + 1"),
}


def nested(kind: str, levels: int) -> str:
    before, inside, after = NESTS[kind]
    text = before * levels + inside + after * levels
    return text + " = 5" if "arithmetic" in kind else text


def within_frames(count: int, expression: str) -> None:
    """Make a filter and ask it with only so many frames left on the stack: a thread's own, since
    nobody knows how deep the one is from which the tests are run.
    """
    failed: list[BaseException] = []

    def asking() -> None:
        limit, used = sys.getrecursionlimit(), 0
        frame = sys._getframe()
        while frame.f_back is not None:
            used, frame = used + 1, frame.f_back
        sys.setrecursionlimit(used + count)
        try:
            asks(expression, {"a": "1", "b": "5"})
        except BaseException as e:  # it is raised below
            failed.append(e)
        finally:
            sys.setrecursionlimit(limit)

    thread = threading.Thread(target=asking)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("kind", NESTS)
def test_deep_nesting_is_refused_and_what_is_taken_needs_half_the_stack(kind: str) -> None:
    taken = 0
    for levels in range(1, DEPTH_MAX + 2):
        try:
            sql(nested(kind, levels))
        except FilterIllegal as e:
            assert "nested deeper" in str(e)  # noqa: PT017  # which levels are refused is the result
            break
        taken = levels
    assert 20 <= taken < DEPTH_MAX + 1
    within_frames(420, nested(kind, taken) + " ")
    assert "nested deeper" in str(refused(nested(kind, 1500 if kind == "parentheses" else 600)))


@pytest.mark.parametrize(
    "expression",
    [
        "a = 1" + " AND a = 1" * 1600,
        "a = 1" + " OR a = 1" * 1600,
        "a" + " + 1" * 4000 + " > 1",
        "1" + " * a" * 4000 + " > 1",
        "NOT " * 4000 + "a = 1",
        "- " * 8000 + "a = 1",
        "- " * 8000 + "1 = a",
        "a IN ('x'" + ", 'x'" * 3000 + ")",
        "/* */" * 3000 + "a = 1",
    ],
)
def test_much_in_a_row_is_not_nested(expression: str) -> None:
    within_frames(300, expression)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "expression",
    ["'" * 16_383, "'a" * 8000, "1" * 16_000 + "x", "1e" * 8000, "/*" * 8000, "`" * 99],
)
def test_a_bad_text_is_refused_soon_however_it_is_made(expression: str) -> None:
    refused(expression)


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_is_refused_at_a_place_inside_it(text: str) -> None:
    is_filter_or_refused(text)


WORDS: Final = [
    *sorted(KEYWORDS),
    *("a", "b", "5", "-5", "2.5", "'x'", "'a%'", "'%'", "''", "`b c`", "TAGS", "1e999", "0x1F"),
    *("=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "(", ")", ",", "--", "/*", "*/", "'"),
]


@settings(deadline=None, max_examples=1500)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_any_row_of_words_is_a_filter_or_is_refused_at_a_place_inside_it(text: str) -> None:
    is_filter_or_refused(text)


def is_filter_or_refused(text: str) -> None:
    try:
        result = asks(text, {"a": "5", "b": "x"})
    except FilterIllegal as e:
        assert e.expression == text  # noqa: PT017  # either outcome is right
        assert 0 <= e.position <= len(text)  # noqa: PT017  # as above
    else:
        assert type(result) is bool
