"""Filters as `pull` takes them: tags and SQL, over a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import CallerError, FilterIllegal, Message, PullStatus, SqlFilter, Store, StoreConfig
from kvstore.consume.filters import compile_filter
from kvstore.consume.sql.faults import LENGTH_MAX


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with topic "t" of one queue."""
    with kvstore.open(tmp_path / "store", StoreConfig(segment_size=64 << 10)) as opened:
        opened.create_topic("t", queues=1)
        yield opened


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


def test_a_text_is_a_tag_expression_and_never_sql(store: Store) -> None:
    put(store, 4)
    assert pulled(store, "even") == [0, 2]
    assert pulled(store, "amount > 1") == []
    assert pulled(store, "even || odd") == pulled(store, "*") == pulled(store, None) == [0, 1, 2, 3]


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
