"""Properties: strict when written, as lenient as RocketMQ when read."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.names import RESERVED
from kvstore.core.records import decode_properties, find_property
from kvstore.errors import MessageIllegal, PropertiesTooLarge
from kvstore.record.properties import encode_properties
from tests.record.strategies import PROPERTIES


def test_properties_are_written_in_order_each_with_its_separators() -> None:
    assert encode_properties({"b": "1", "a": "ü"}) == b"b\x011\x02a\x01\xc3\xbc\x02"
    assert encode_properties({}) == b""
    assert encode_properties(MappingProxyType({"a": "b"})) == b"a\x01b\x02"


@given(PROPERTIES)
def test_properties_come_back(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    assert list(decode_properties(raw)) == list(properties)
    assert raw.endswith(b"\x02") or not properties
    assert decode_properties(raw[:-1]) == properties, "the last separator may be missing"
    for name, value in properties.items():
        assert find_property(raw, name.encode()) == value.encode()
        assert find_property(raw[:-1], name.encode()) == value.encode()


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("", "v", "name '' is empty"),
        ("n", "", "'n'.*empty"),
        ("a\x01b", "v", "0x01"),
        ("a\x02b", "v", "0x02"),
        ("n", "a\x01b", "'n'.*0x01"),
        ("n", "\x02", "'n'.*0x02"),
        ("n", "\ud800", "'n'.*surrogate"),
        ("\udfff", "v", "surrogate"),
        (1, "v", "name 1 is a int"),
        ("n", None, "'n'.*None is a NoneType"),
        ("n", b"v", "'n'.*bytes"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_property_that_can_not_be_stored_is_named(
    name: Any, value: Any, what: str, place: int
) -> None:
    pairs: list[tuple[Any, Any]] = [("first", "1"), ("second", "2")]
    pairs.insert(place, (name, value))
    with pytest.raises(MessageIllegal, match=what):
        encode_properties(dict(pairs))


def test_separators_that_make_up_for_each_other_are_found() -> None:
    for properties in ({"a": "b\x02c\x01d"}, {"a\x01b\x02c": "d"}, {"a": "\x01\x02"}):
        with pytest.raises(MessageIllegal):
            encode_properties(properties)


def test_properties_above_32767_bytes_are_refused() -> None:
    assert len(encode_properties({"n": "v" * 32_764})) == 32_767
    with pytest.raises(PropertiesTooLarge) as caught:
        encode_properties({"n": "ü" * 16_383})
    assert (caught.value.size, caught.value.limit) == (32_769, 32_767)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02\x02\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),
        (b"\x01b\x02c\x01d\x02", {"c": "d"}),
        (b"ab\x02c\x01d\x02", {"c": "d"}),
        (b"abcdef", {}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01b\x02a\x01\x02", {"a": "b"}),
        (b"a\x01\xff\x02", {"a": "�"}),
        (b"\x01\x01\x01\x02", {}),
    ],
)
def test_odd_properties_are_read_as_rocketmq_reads_them(
    raw: bytes, expected: dict[str, str]
) -> None:
    assert decode_properties(raw) == expected


SEPARATORS_AND_LETTERS = st.lists(st.sampled_from((b"\x01", b"\x02", b"a", b"ab", b"\xff"))).map(
    b"".join
)


@given(st.binary() | SEPARATORS_AND_LETTERS)
def test_any_bytes_can_be_read(raw: bytes) -> None:
    for name, value in decode_properties(raw).items():
        assert name
        assert value


@given(SEPARATORS_AND_LETTERS, st.sampled_from((b"a", b"ab", b"b", b"", b"a\x01b", b"b\x02a")))
def test_finding_one_agrees_with_reading_all(raw: bytes, name: bytes) -> None:
    value = find_property(raw, name)
    expected = decode_properties(raw).get(name.decode())
    assert (None if value is None else value.decode("utf-8", "replace")) == expected


def test_a_name_inside_a_value_is_not_found() -> None:
    raw = b"NOTE\x01KEYS\x01x\x02XKEYS\x01y\x02"
    assert find_property(raw, b"KEYS") is None
    assert find_property(raw + b"KEYS\x01z\x02", b"KEYS") == b"z"


@pytest.mark.parametrize("name", [b"a\x01b", b"a\x02b", b"b\x01c", b""])
def test_what_can_not_be_a_name_is_not_found(name: bytes) -> None:
    assert find_property(b"a\x01b\x01c\x02b\x01c\x01d\x02\x01e\x02", name) is None
    assert find_property(b"x\x01a\x02b\x01c\x02a\x02b\x01c", name) is None


def test_an_empty_value_does_not_hide_an_earlier_one() -> None:
    for empties in range(4):
        assert find_property(b"a\x01b\x02" + b"a\x01\x02" * empties, b"a") == b"b"
    assert find_property(b"a\x01\x02" * 3, b"a") is None


def test_the_names_with_a_meaning_are_reserved() -> None:
    assert {"KEYS", "TAGS", "UNIQ_KEY", "__SHARDINGKEY", "DELAY", "__CRC32#"} <= RESERVED
    assert all(type(name) is str and name for name in RESERVED)
