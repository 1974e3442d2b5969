"""SQL filters are right in written cases, and as random trees against an interpreter.

The interpreter at the end of this file works with True, False and None, as the tables in
docs/filters.md do; the compiler never has a third value, so the two have little to share.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import SqlFilter, StoredMessage, sql
from kvstore.read.sql.filter_faults import LENGTH_MAX
from kvstore.read.sql.grammar import DEPTH_MAX, KEYWORDS
from kvstore.record.properties import encode_properties

PAGE: Final = Path(__file__).resolve().parent.parent.parent / "docs" / "filters.md"


def message(properties: dict[str, str]) -> StoredMessage:
    raw = encode_properties(properties)
    return StoredMessage("t", 0, 0, 0, 0, b"", raw, 0, 0, 0, 0, b"", b"", 0, 0, 0)


def asks(expression: str, properties: dict[str, str]) -> bool:
    return sql(expression).matches(message(properties))


def outcome(expression: str, properties: dict[str, str]) -> bool | None:
    """True, False, or None for unknown: neither the expression nor its opposite holds."""
    is_true = asks(expression, properties)
    is_false = asks(f"NOT ({expression}\n)", properties)
    assert not (is_true and is_false)
    return True if is_true else False if is_false else None


# -- the value


def test_a_filter_is_a_value_equal_by_its_expression() -> None:
    one, other = sql("a = 1"), SqlFilter("a = 1")
    assert one == other
    assert hash(one) == hash(other)
    assert one != sql("a =  1")
    assert one.expression == "a = 1"
    assert repr(one) == "SqlFilter(expression='a = 1')"


def test_a_filter_is_made_once() -> None:
    assert sql("a = 17") is sql("a = 17")


def test_a_filter_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        sql("a = 1").expression = "a = 2"  # type: ignore[misc]  # that it is refused is the point


def test_a_filter_can_be_copied_and_pickled() -> None:
    found = sql("a = 1")
    for again in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert again == found
        assert again.matches(message({"a": "1"}))


def test_the_parser_is_loaded_for_the_first_filter_and_not_before() -> None:
    code = (
        "import sys, kvstore; assert 'lark' not in sys.modules; kvstore.sql('a = 1');"
        "assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_that_make_the_first_filters_at_once_get_them_right() -> None:
    """In a process of its own, since the parser is made once."""
    code = """if True:
        import sys, threading, kvstore
        sys.setswitchinterval(1e-6)
        from tests.read.test_sql import asks
        start, failed = threading.Barrier(8), []
        def work(number):
            start.wait()
            try:
                for at in range(number, 48, 8):
                    assert asks(f"a = {at} and not b IS not null", {"a": str(at)})
                    assert not asks(f"a IN ('{at}') OR a > {at}", {"a": "-1"})
            except BaseException as e:
                failed.append(e)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        if failed: raise failed[0]
    """
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PAGE.parent.parent)


# -- written cases

HERE: Final = {"a": "5", "b": "7.5", "word": "eu", "yes": "TRUE", "no": "false", "x.y": "dotted"}


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        # numbers
        ("a = 5", True),
        ("a = 5.0", True),
        ("a = 5L", True),
        ("a = 0x5", True),
        ("a = .5e1", True),
        ("a = 50e-1", True),
        ("a = 5.", True),
        ("a = 5f", True),
        ("a <> 5", False),
        ("a < 5", False),
        ("a <= 5", True),
        ("a > -5", True),
        ("5 < b", True),
        ("5 >= b", False),
        ("a < b", True),
        ("a > word", None),
        ("a > missing", None),
        ("word > 5", None),
        ("word <> 5", None),
        ("1 < 2", True),
        ("1 = 1.5", False),
        # texts
        ("word = 'eu'", True),
        ("word = 'EU'", False),
        ("word <> 'us'", True),
        ("'eu' = word", True),
        ("a = '5'", True),
        ("a = '5.0'", False),
        ("a = b", False),
        ("a = a", True),
        ("a <> missing", None),
        ("missing = a", None),
        ("missing = missing", None),
        ("'x' = 'x'", True),
        ("'it''s' = 'it''s'", True),
        # names
        ("A = 5", None),
        ("x.y = 'dotted'", True),
        ("`x.y` = 'dotted'", True),
        ("`no such-name` IS NULL", True),
        ("$a IS NULL AND _a IS NULL AND größe IS NULL", True),
        # truth
        ("yes", True),
        ("no", False),
        ("word", None),
        ("missing", None),
        ("yes = TRUE", True),
        ("yes <> FALSE", True),
        ("no = FALSE", True),
        ("TRUE = no", False),
        ("word = FALSE", None),
        ("missing = FALSE", None),
        ("TRUE", True),
        ("FALSE", False),
        ("NULL", None),
        ("TRUE = TRUE", True),
        ("yes AND NOT no", True),
        # BETWEEN
        ("a BETWEEN 5 AND 5", True),
        ("a BETWEEN 6 AND 9", False),
        ("a NOT BETWEEN 6 AND 9", True),
        ("missing BETWEEN 1 AND 2", None),
        ("word NOT BETWEEN 1 AND 2", None),
        ("a BETWEEN 1 AND missing", None),
        ("a BETWEEN 6 AND missing", False),
        ("a BETWEEN missing AND 4", False),
        ("a BETWEEN a AND b AND word = 'eu'", True),
        ("6 BETWEEN a AND b", True),
        # IN
        ("word IN ('us', 'eu')", True),
        ("word NOT IN ('us', 'eu')", False),
        ("a IN ('5')", True),
        ("a IN ('5.0')", False),
        ("missing IN ('x')", None),
        ("missing NOT IN ('x')", None),
        ("'x' IN ('x', 'x')", True),
        # LIKE
        ("word LIKE 'eu'", True),
        ("word LIKE 'e_'", True),
        ("word LIKE '_'", False),
        ("word LIKE 'e%'", True),
        ("word LIKE '%u'", True),
        ("word LIKE '%'", True),
        ("word LIKE '%%eu%%'", True),
        ("word LIKE ''", False),
        ("word LIKE 'E%'", False),
        ("word NOT LIKE 'u%'", True),
        ("'aba' LIKE 'ab%ba'", False),
        ("'abba' LIKE 'ab%ba'", True),
        ("'a' LIKE '%a%a'", False),
        ("missing LIKE '%'", None),
        ("missing NOT LIKE '%'", None),
        ("'50%' LIKE '50!%' ESCAPE '!'", True),
        ("'50x' LIKE '50!%' ESCAPE '!'", False),
        ("'a_b!' LIKE 'a!__!!' ESCAPE '!'", True),
        ("'%' LIKE '%%' ESCAPE '%'", True),
        ("'x' LIKE '%%' ESCAPE '%'", False),
        ("'a.c' LIKE 'a.c' AND NOT 'abc' LIKE 'a.c'", True),
        # searches
        ("word CONTAINS 'u'", True),
        ("word NOT CONTAINS 'u'", False),
        ("word STARTSWITH 'e'", True),
        ("word STARTSWITH 'u'", False),
        ("word ENDSWITH 'u'", True),
        ("word NOT ENDSWITH '%'", True),
        ("missing CONTAINS 'x'", None),
        ("missing NOT STARTSWITH 'x'", None),
        ("'axb' contains 'x'", True),
        # NULL
        ("missing IS NULL", True),
        ("missing IS NOT NULL", False),
        ("a IS NULL", False),
        ("(a) IS NOT NULL", True),
        # arithmetic
        ("a + 1 = 6", True),
        ("a - 1 - 1 = 3", True),
        ("2 + a * 2 = 12", True),
        ("(2 + a) * 2 = 14", True),
        ("a / 2 = 2.5", True),
        ("20 / a / 2 = 2", True),
        ("-a = -5", True),
        ("- - a = + 5", True),
        ("a * -1 < 0", True),
        ("a / 0 > 0", None),
        ("word + 1 > 0", None),
        ("missing * 0 = 0", None),
        ("9223372036854775807 + 1 > 0", None),
        ("9223372036854775807 + 1 - 1 > 0", None),
        ("1e308 * 10 > 0", None),
        ("a > 1 + 1 AND b > 1 * 1", True),
        # logic
        ("a = 1 OR a = 5 AND word = 'us'", False),
        ("(a = 5 OR a = 1) AND word = 'eu'", True),
        ("NOT a = 1 AND word = 'eu'", True),
        ("NOT NOT a = 5", True),
        ("NOT missing = 1", None),
        ("missing = 1 OR TRUE", True),
        ("missing = 1 AND FALSE", False),
        ("missing = 1 AND TRUE", None),
        # space and case
        ("a=5 and\tword\n='eu'", True),
        ("a /* five, * or ** */ = -- or not\n 5 -- yes", True),
        ("Not A Is Not Null aNd tRUE", True),
    ],
)
def test_an_expression_is_true_false_or_unknown(expression: str, wanted: bool | None) -> None:
    assert outcome(expression, HERE) is wanted


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("+5", 5),
        ("-0", 0),
        ("007", 7),
        (".5", 0.5),
        ("5.", 5),
        ("1E3", 1000),
        ("9223372036854775807", 9223372036854775807),
        ("-9223372036854775808", -9223372036854775808),
        ("9223372036854775808", 9223372036854775808.0),
        ("9223372036854775809", 9223372036854775808.0),
        ("1" + "0" * 19 + "1", 1e20),
        ("0" * 100 + "5", 5),
    ],
)
def test_a_propertys_text_is_read_as_the_number_it_is(text: str, number: float) -> None:
    assert outcome(f"a = {number}", {"a": text}) is True


@pytest.mark.parametrize(
    "text",
    [
        "five",
        " 5",
        "5 ",
        "1_000",
        "\u0665",
        "5\u0665",
        "NaN",
        "inf",
        "-Infinity",
        "0x5",
        "5L",
        "1e999",
        "--5",
    ],
)
def test_what_is_not_a_number_makes_a_comparison_unknown(text: str) -> None:
    assert outcome("a = 5", {"a": text}) is None
    assert outcome("a < 1e308", {"a": text}) is None


def test_integers_are_compared_exactly() -> None:
    assert outcome("a = 9007199254740992", {"a": "9007199254740993"}) is False
    assert outcome("a > 9007199254740992.0", {"a": "9007199254740993"}) is True


@pytest.mark.parametrize("word", ["\u0131s", "l\u0131ke", "\ufb01n"])
def test_only_ascii_makes_a_keyword(word: str) -> None:
    assert asks(f"{word} IS NULL", {}) is True


def test_the_systems_properties_have_rocketmqs_names() -> None:
    properties = {"TAGS": "paid", "KEYS": "o-17 o-18", "UNIQ_KEY": "id"}
    assert asks("TAGS = 'paid' AND KEYS LIKE '%o-17%' AND UNIQ_KEY = 'id'", properties)


# An exponential search would not end before the processor does; a linear one takes milliseconds.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a LIKE '" + "%a" * 60 + "%b'", "a" * 30_000),
        ("a LIKE '" + "%a_" * 60 + "%b'", "a" * 30_000),
        ("a LIKE '" + "%_" * 4000 + "b'", "a" * 30_000),
        ("a LIKE '%" + "a" * 4000 + "b%'", "a" * 30_000),
        ("a > 5", "1" * 30_000),
        ("a > 5", "1" * 30_000 + "x"),
        ("a > 5", "1." * 15_000),
        ("a > 5", "+" * 30_000),
    ],
)
def test_a_long_text_is_judged_soon(expression: str, text: str) -> None:
    assert asks(expression, {"a": text}) is False


# -- the document


def test_the_examples_of_the_document_are_right() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Examples")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`+)(.+?)\1 \| `(\{.*?\})` \| (yes|no) \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n| `")
    for _, expression, properties, wanted in rows:
        assert asks(expression, json.loads(properties)) is (wanted == "yes"), expression


def test_the_document_has_every_keyword_and_the_limits() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"{LENGTH_MAX} characters" in text
    assert f"{DEPTH_MAX} levels" in text
    listed = text.partition("Keywords may be written in any case: ")[2].partition(". ")[0]
    assert re.findall(r"`(\w+)`", listed) == sorted(KEYWORDS)


# -- trees at random: printed, compiled, and held against an interpreter

Tree = tuple[Any, ...]
NAMES: Final = ["a", "b", "c.d", "`e f`"]
TEXTS: Final = ["5", "-2", "2.5", "1e3", "9223372036854775807", "true", "FALSE", "ab", "a%b", "a'b"]

names = st.sampled_from(NAMES).map(lambda name: ("name", name))
numbers = st.one_of(
    st.integers(-6, 6), st.sampled_from([2.5, -0.5, 1e3, 1e300, 2**63 - 1, -(2**63)])
).map(lambda number: ("number", number))
texts = st.sampled_from([*TEXTS, "", "a"]).map(lambda text: ("text", text))
numerics = st.recursive(
    names | numbers,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*/"), inner, inner),
        st.tuples(st.just("negative"), names | inner.filter(lambda node: node[0] in "+-*/")),
    ),
    max_leaves=5,
)
pattern_parts = st.lists(st.sampled_from(["any", "one", "=a", "=b", "=%", "=_", "=!"]), max_size=5)


def ordered(node: Tree) -> Tree:
    """A BETWEEN whose written bounds are the right way round."""
    _, value, low, high = node
    if low[0] == high[0] == "number" and low[1] > high[1]:
        return ("between", value, high, low)
    return node


words = names | texts
leaves = st.one_of(
    names,
    st.sampled_from([("truth", True), ("truth", False), ("truth", None)]),
    st.tuples(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), numerics, numerics),
    st.tuples(st.sampled_from(["=", "<>"]), words, words),
    st.tuples(st.sampled_from(["=", "<>"]), names, st.booleans().map(lambda b: ("truth", b))),
    st.tuples(st.just("between"), numerics, numerics, numerics).map(ordered),
    st.tuples(st.just("in"), words, st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3)),
    st.tuples(st.just("like"), words, pattern_parts),
    st.tuples(
        st.sampled_from(["contains", "startswith", "endswith"]), words, st.sampled_from(TEXTS)
    ),
    st.tuples(st.just("null"), names),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
    ),
    max_leaves=12,
)
messages = st.dictionaries(
    st.sampled_from([name.strip("`") for name in NAMES]), st.sampled_from(TEXTS)
)

RANKS: Final = {"or": 1, "and": 2, "not": 3, "+": 5, "-": 5, "*": 6, "/": 6, "negative": 7}
ATOMS: Final = frozenset({"name", "number", "text", "truth"})


def printed(node: Tree, floor: int = 0) -> list[str]:
    """The tokens of a tree, with parentheses only where the ranks ask for them."""
    rank = 9 if node[0] in ATOMS else RANKS.get(node[0], 4)
    tokens = tokens_of(node, rank)
    return ["(", *tokens, ")"] if rank < floor else tokens


def tokens_of(node: Tree, rank: int) -> list[str]:
    kind, *parts = node
    if kind in ATOMS:
        return atom(kind, parts[0])
    if kind in ("not", "negative"):
        return ["NOT" if kind == "not" else "-", *printed(parts[0], rank)]
    if kind == "null":
        return [*printed(parts[0], 5), "IS", "NULL"]
    if kind == "between":
        value, low, high = (printed(part, 5) for part in parts)
        return [*value, "BETWEEN", *low, "AND", *high]
    if kind == "in":
        return [*printed(parts[0], 5), "IN", "(", *" , ".join(map(quoted, parts[1])).split(), ")"]
    if kind == "like":
        return [*printed(parts[0], 5), "LIKE", *like_tokens(parts[1])]
    if kind in ("contains", "startswith", "endswith"):
        return [*printed(parts[0], 5), kind.upper(), quoted(parts[1])]
    # A comparison does not chain; AND, OR and arithmetic go from left to right.
    left = 5 if rank == 4 else rank
    return [*printed(parts[0], left), kind.upper(), *printed(parts[1], rank + 1)]


def atom(kind: str, value: Any) -> list[str]:
    if kind == "text":
        return [quoted(value)]
    if kind == "truth":
        return [{True: "TRUE", False: "FALSE", None: "NULL"}[value]]
    if kind == "number" and value < 0:
        return ["-", repr(-value)]
    return [str(value)]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def like_tokens(parts: list[str]) -> list[str]:
    signs = {"any": "%", "one": "_"}
    pattern = "".join(
        signs.get(part) or ("!" if part[1] in "%_!" else "") + part[1] for part in parts
    )
    return [quoted(pattern), "ESCAPE", "'!'"]


def joined(tokens: list[str], space: str, is_lower: bool) -> str:
    if is_lower:
        tokens = [token.lower() if token in KEYWORDS else token for token in tokens]
    return space.join(tokens)


def number(text: str | None) -> int | float | None:
    """Only the texts these tests have."""
    if text is None:
        return None
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return None


def value_of(node: Tree, properties: dict[str, str]) -> int | float | None:
    kind, *parts = node
    if kind == "number":
        return parts[0]  # type: ignore[no-any-return]  # a tree is a plain tuple
    if kind == "name":
        return number(properties.get(parts[0].strip("`")))
    if kind == "negative":
        return value_of(("-", ("number", 0), parts[0]), properties)
    one, two = value_of(parts[0], properties), value_of(parts[1], properties)
    if one is None or two is None or (kind == "/" and two == 0):
        return None
    result = {"+": lambda: one + two, "-": lambda: one - two, "*": lambda: one * two}.get(
        kind, lambda: one / two
    )()
    if isinstance(result, int):
        return result if -(2**63) <= result < 2**63 else None
    return result if math.isfinite(result) else None


def text_of(node: Tree, properties: dict[str, str]) -> str | None:
    return node[1] if node[0] == "text" else properties.get(node[1].strip("`"))


def compare(sign: str, one: Any, two: Any) -> bool:
    order = (one > two) - (one < two)
    signs = {"=": [0], "<>": [-1, 1], "<": [-1], "<=": [-1, 0], ">": [1], ">=": [0, 1]}
    return order in signs[sign]


def both(one: bool | None, two: bool | None) -> bool | None:
    if one is False or two is False:
        return False
    return None if one is None or two is None else True


def opposite(one: bool | None) -> bool | None:
    return None if one is None else not one


def fits(text: str, parts: list[str]) -> bool:
    if not parts:
        return not text
    if parts[0] == "any":
        return any(fits(text[at:], parts[1:]) for at in range(len(text) + 1))
    return bool(text) and parts[0] in ("one", "=" + text[0]) and fits(text[1:], parts[1:])


def interpreted(node: Tree, properties: dict[str, str]) -> bool | None:
    kind, *parts = node
    if kind == "truth":
        return parts[0]  # type: ignore[no-any-return]  # a tree is a plain tuple
    if kind == "name":
        return {"true": True, "FALSE": False}.get(properties.get(parts[0].strip("`"), ""))
    if kind == "not":
        return opposite(interpreted(parts[0], properties))
    if kind in ("and", "or"):
        one, two = (interpreted(part, properties) for part in parts)
        return both(one, two) if kind == "and" else opposite(both(opposite(one), opposite(two)))
    if kind == "null":
        return parts[0][1].strip("`") not in properties
    if kind == "between":
        value, low, high = parts
        above = interpreted((">=", value, low, "numbers"), properties)
        return both(above, interpreted(("<=", value, high, "numbers"), properties))
    if kind in ("in", "like", "contains", "startswith", "endswith"):
        return searched(kind, text_of(parts[0], properties), parts[1])
    return compared(kind, parts, properties)


def searched(kind: str, text: str | None, what: Any) -> bool | None:
    if text is None:
        return None
    if kind == "in":
        return any(text == option for option in what)
    if kind == "like":
        return fits(text, what)
    places = [at for at in range(len(text)) if text[at : at + len(what)] == what]
    if kind == "contains":
        return places != []
    return (0 if kind == "startswith" else len(text) - len(what)) in places


def compared(sign: str, parts: list[Any], properties: dict[str, str]) -> bool | None:
    one, two, *numbers_only = parts
    kinds = {one[0], two[0]}
    if "truth" in kinds:
        found = interpreted(one, properties)
        return None if found is None else compare(sign, found, two[1])
    is_text = "text" in kinds or (kinds == {"name"} and sign in ("=", "<>"))
    if is_text and not numbers_only:
        left: Any = text_of(one, properties)
        right: Any = text_of(two, properties)
    else:
        left, right = value_of(one, properties), value_of(two, properties)
    return None if left is None or right is None else compare(sign, left, right)


@settings(deadline=None, max_examples=1500)
@given(conditions, messages, st.sampled_from([" ", "\n", "\t /* NOT */ ", " --x\n"]), st.booleans())
def test_a_tree_means_what_the_tables_of_three_values_say(
    tree: Tree, properties: dict[str, str], space: str, is_lower: bool
) -> None:
    expression = joined(printed(tree), space, is_lower)
    assert outcome(expression, properties) is interpreted(tree, properties), expression


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(["any", "one", "=a", "=b"]), max_size=9), st.text("ab", max_size=9))
def test_a_pattern_fits_what_trying_all_ways_says(parts: list[str], text: str) -> None:
    expression = joined(["a", "LIKE", *like_tokens(parts)], " ", False)
    if text:
        assert asks(expression, {"a": text}) is fits(text, parts)
