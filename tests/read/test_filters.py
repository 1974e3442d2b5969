"""Filters as `pull` takes them: tags and SQL, over a store."""

from __future__ import annotations

import ast
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import CallerError, FilterIllegal, Message, PullStatus, SqlFilter, Store, StoreConfig
from kvstore.read.filters import compile_filter
from kvstore.read.sql.filter_faults import LENGTH_MAX

pytestmark = pytest.mark.topic(queues=1)


def put(store: Store, count: int) -> None:
    """Amounts 0, 1, 2 ...; every third is of region us, every seventh has no region."""
    regions = ["us" if i % 3 == 0 else "eu" for i in range(count)]
    store.put_batch(
        [
            Message(
                "t",
                b"",
                queue=0,
                tag="even" if i % 2 == 0 else "odd",
                keys=[f"o-{i}"],
                properties={"amount": str(i)} | ({"region": regions[i]} if i % 7 else {}),
            )
            for i in range(count)
        ]
    )


def pulled(store: Store, wanted: str | SqlFilter | None, limit: int = 32) -> list[int]:
    """The offsets of all messages that a filter lets through, pull by pull."""
    found: list[int] = []
    at = 0
    while at < store.bounds("t", 0).next_offset:
        result = store.pull("t", 0, at, limit, filter=wanted)
        assert (result.status == PullStatus.FOUND) is bool(result.messages)
        assert result.next_offset > at
        found += [m.offset for m in result.messages]
        at = result.next_offset
    return found


def test_a_pull_gives_what_the_expression_is_true_for(store: Store) -> None:
    put(store, 100)
    assert pulled(store, kvstore.sql("amount > 90 AND region = 'us'")) == [93, 96, 99]


def test_a_message_for_which_it_is_unknown_is_passed_over(store: Store) -> None:
    put(store, 22)
    not_us = kvstore.sql("NOT region = 'us'")
    assert pulled(store, not_us) == [i for i in range(22) if i % 3 and i % 7]
    assert pulled(store, kvstore.sql("region IS NULL")) == [0, 7, 14, 21]


def test_tag_and_keys_are_properties_of_an_expression(store: Store) -> None:
    put(store, 20)
    assert pulled(store, kvstore.sql("TAGS = 'odd' AND KEYS LIKE 'o-1_'")) == [11, 13, 15, 17, 19]


@pytest.mark.parametrize("limit", [1, 3, 32, 1000])
def test_no_message_is_left_out_or_comes_twice_however_pulls_are_cut(
    store: Store, limit: int
) -> None:
    put(store, 500)
    assert pulled(store, kvstore.sql("amount / 100 >= 4.5"), limit) == list(range(450, 500))


def test_a_pull_ends_though_nothing_matches_for_long(store: Store) -> None:
    put(store, 2000)
    result = store.pull("t", 0, 0, filter=kvstore.sql("amount = 1999"))
    assert (result.status, result.messages) == (PullStatus.NO_MATCHED_MESSAGE, [])
    assert 800 <= result.next_offset < 2000
    assert pulled(store, kvstore.sql("amount = 1999")) == [1999]


def test_a_filter_judges_records_read_anew_as_those_just_put(tmp_path: Path) -> None:
    config = StoreConfig(segment_size=64 << 10)
    with kvstore.open(tmp_path / "store", config) as store:
        store.create_topic("t", queues=1)
        put(store, 50)
        before = pulled(store, kvstore.sql("amount BETWEEN 10 AND 20"))
    with kvstore.open(tmp_path / "store", config) as store:
        assert pulled(store, kvstore.sql("amount BETWEEN 10 AND 20")) == before
    assert before == list(range(10, 21))


@pytest.mark.parametrize("asked", ["reddish", "ish || red-dish", "re", "RED"])
def test_a_tag_matches_as_a_whole(store: Store, asked: str) -> None:
    store.put_batch([Message("t", b"", queue=0, tag=tag) for tag in ("red", "dish", None)])
    assert pulled(store, asked) == []
    store.create_group("g")
    assert store.pop("g", "t", 10, filter=asked) == []


def test_a_text_is_a_tag_expression_and_never_sql(store: Store) -> None:
    put(store, 4)
    assert pulled(store, "even") == [0, 2]
    assert pulled(store, "even || odd") == pulled(store, "*") == pulled(store, None) == [0, 1, 2, 3]
    with pytest.raises(FilterIllegal, match="amount > 1"):
        pulled(store, "amount > 1")


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("amount > 5", 6), ("amount>5", 6), ("paid or shipped", 4), ("a || in transit", 7),
        ("a=1", 1), ("'paid'", 0), ('a||"b"', 3), ("(a)", 0), ("a) || b", 1), ("a<b", 1),
        ("!paid", 0), ("`a`", 0), ("paid, shipped", 4), ("a;b", 1), ("a&&b", 1), ("a|b", 1),
        ("paid*", 4), ("a || *", 5), ("a\tb", 1), ("a\u00a0b", 1), ("a\x00", 1),
        ("\u2003a || a b", 7), ("amount\u22655", 6), ("\u201cpaid\u201d", 0), ("a\u200bb", 1),
    ],
)  # fmt: skip
def test_a_text_that_cant_be_a_tag_is_refused_with_the_ways_to_say_it(
    expression: str, position: int
) -> None:
    with pytest.raises(FilterIllegal) as caught:
        compile_filter(expression)
    assert (caught.value.expression, caught.value.position) == (expression, position)
    told = str(caught.value)
    assert all(way in told for way in ("'||'", "kvstore.sql(", "TAGS = ", "--sql"))


def test_the_error_shows_a_condition_and_a_strange_tag_as_sql_that_works(store: Store) -> None:
    store.put("t", b"", tag="it's > 5", properties={"amount": "6"})
    for text in ("amount > 5", "it's > 5", "amount > 5 AND region IS NULL"):
        with pytest.raises(FilterIllegal) as caught:
            store.pull("t", 0, 0, filter=text)
        calls = re.findall(r"kvstore\.sql\((.+?)\)(?:;| \(on)", str(caught.value))
        shown = [ast.literal_eval(call) for call in calls]
        assert shown[1] == "TAGS = '" + text.replace("'", "''") + "'"
        assert (shown[0] == text) is (text != "it's > 5")
        assert pulled(store, kvstore.sql(shown[1])) == ([0] if text == "it's > 5" else [])
        kvstore.sql(shown[0])


def test_the_characters_that_the_document_lists_are_refused_and_no_others() -> None:
    page = Path(__file__).parents[2] / "docs" / "filters.md"
    lines = page.read_text().splitlines()
    listed = next(line for line in lines if line.startswith("    < >")).split()
    assert len(listed) == 14
    behind = " ".join(lines).partition("Beyond ASCII it refuses")[2].partition("accent).")[0]
    examples = re.findall("`(.)`", behind)
    assert len(examples) == 16
    words = re.findall("[A-Z-]{5,}(?: [A-Z]+)?", behind)
    assert words == ["EQUAL", "LESS-THAN", "GREATER-THAN", "QUOTATION MARK", "CORNER BRACKET"]
    refused = set()
    for character in filter(
        str.isprintable, map(chr, [*range(33, 0x3100), *range(0xFE30, 0xFFE0)])
    ):
        try:
            assert compile_filter(f"a{character}b")
        except FilterIllegal:
            refused.add(character)
    assert refused >= {*listed, *examples}
    for character in refused - {*listed, "\u00b4"}:
        name = unicodedata.name(character)
        form = unicodedata.normalize("NFKC", character)
        assert form in listed or any(word in name for word in words), name


@pytest.mark.parametrize(
    "expression",
    [
        "amount\u22675", "amount\u22665", "amount\u2a7e5", "amount\ufe655", "amount\u226f5",
        "amount\u22485", "\uff02paid\uff02", "\uff07paid\uff07", "\u300cpaid\u300d",
        "\u301dpaid\u301e", "paid\uff0cshipped", "paid\uff5cshipped", "\uff08paid\uff09",
    ],
)  # fmt: skip
def test_signs_as_other_keyboards_write_them_are_refused(expression: str) -> None:
    with pytest.raises(FilterIllegal, match=r"kvstore\.sql"):
        compile_filter(expression)


def test_a_long_text_that_cant_be_a_tag_has_a_short_error() -> None:
    with pytest.raises(FilterIllegal, match="sql") as caught:
        compile_filter("x" * 10_000 + " > 5")
    assert len(str(caught.value)) < 600


def test_any_other_tag_that_rocketmq_writes_is_a_tag_here(store: Store) -> None:
    tags = [
        "paid", "TagA", "v2.1", "a-b_c", "a:b/c", "50%", "é", "订单", "#1@x", "a+b", "$x", "~",
        "TRUE", "{a}", "[b]", "^c", "a\\b", "?", "\U0001f600", "a\u2192b",
        "\u00b15", "\u3231", "a\uff0bb",
    ]  # fmt: skip
    store.put_batch([Message("t", b"", queue=0, tag=tag) for tag in tags])
    for offset, tag in enumerate(tags):
        assert pulled(store, tag) == pulled(store, f" other||{tag} ") == [offset]


def test_a_pop_with_a_wrong_filter_discards_nothing(store: Store) -> None:
    put(store, 20)
    store.create_group("g")
    store.create_namespace("n")
    inside = store.namespace("n")
    inside.create_topic("t", queues=1)
    inside.create_group("g")
    inside.put("t", b"x")
    for calls in (store, inside):
        for wrong in ("amount > 5", "a || ", "in transit"):
            with pytest.raises(FilterIllegal) as caught:
                calls.pop("g", "t", limit=32, filter=wrong)
            assert isinstance(caught.value, ValueError)
    assert len(store.pop("g", "t", limit=32)) == 20
    assert len(inside.pop("g", "t", limit=32)) == 1


@pytest.mark.parametrize(
    ("expression", "position"),
    [("", 0), ("  ", 0), ("||", 0), ("a ||", 4), ("|| a", 0), ("a || || b", 4), ("a||b||", 6)],
)
def test_an_empty_tag_is_refused_with_its_place(
    store: Store, expression: str, position: int
) -> None:
    with pytest.raises(FilterIllegal, match="a tag was expected") as caught:
        store.pull("t", 0, 0, filter=expression)
    assert (caught.value.expression, caught.value.position) == (expression, position)


def test_a_tag_expression_is_as_long_as_it_may_be_and_no_longer() -> None:
    assert compile_filter("a" * LENGTH_MAX) is not None
    with pytest.raises(FilterIllegal) as caught:
        compile_filter("a" * (LENGTH_MAX + 1))
    assert caught.value.position == LENGTH_MAX


@pytest.mark.parametrize("wrong", [5, b"a", ["a"], True, lambda m: True])
def test_what_is_no_filter_is_a_callers_error(store: Store, wrong: Any) -> None:
    with pytest.raises(CallerError, match="must be a text"):
        store.pull("t", 0, 0, filter=wrong)


def test_a_filter_is_compiled_once() -> None:
    assert compile_filter("a || b") is compile_filter("a || b")
    assert compile_filter(kvstore.sql("a = 1")) is compile_filter(kvstore.sql("a = 1"))
