"""Hashes: the Java ones to the bit, and the key index's own. All of them are on disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh32_intdigest

from kvstore.core.hashing import java_hash
from kvstore.core.names import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from kvstore.record.hashes import key_hash, key_hash_range, tags_code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("Aa", 2112),
        ("BB", 2112),
        ("TopicTest#MessageKey", 638347386),
        ("polygenelubricants", -(2**31)),
        ("hello world", 1794106052),
        ("ü", 252),
        ("你好", 652829),
        ("\U0001f600", 31 * 0xD83D + 0xDE00),
        ("\ud800", 0xD800),
    ],
)
def test_java_hashes_are_those_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@given(st.text())
def test_java_hashes_follow_their_definition(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = value * 31 + int.from_bytes(units[i : i + 2], "big")
    assert java_hash(text) == (value + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(
    ("topic", "tag", "level", "expected"),
    [
        ("t", None, None, 0),
        ("t", "", None, 0),
        ("t", "Aa", None, 2112),
        ("t", "TagA||TagB", None, java_hash("TagA||TagB")),
        ("t", "Aa", "3", 2112),
        (SCHEDULE_TOPIC, "Aa", None, 2112),
        (SCHEDULE_TOPIC, "Aa", "3", 1_000_000 + 10_000),
        (SCHEDULE_TOPIC, None, "18", 1_000_000 + 7_200_000),
        (SCHEDULE_TOPIC, None, "99", 1_000_000 + 7_200_000),
        (SCHEDULE_TOPIC, "Aa", "0", 2112),
        (SCHEDULE_TOPIC, "Aa", "-1", 2112),
        (SCHEDULE_TOPIC, "Aa", "x", 2112),
        (SCHEDULE_TOPIC, "Aa", "9" * 5000, 2112),
    ],
)
def test_the_tags_code_is_the_tag_or_the_time_of_delivery(
    topic: str, tag: str | None, level: str | None, expected: int
) -> None:
    assert tags_code(topic, tag, level, 1_000_000) == expected


def test_there_are_18_delay_levels_from_a_second_to_two_hours() -> None:
    assert len(DELAY_LEVELS_MS) == 18
    assert DELAY_LEVELS_MS[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert DELAY_LEVELS_MS[13:] == (600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000)


def test_a_keys_hash_is_the_same_in_every_version() -> None:
    assert key_hash(b"orders", b"order-7") == 0x22E979A75B


@given(st.binary(), st.binary())
def test_a_keys_hashes_in_all_topics_are_neighbours(topic: bytes, key: bytes) -> None:
    low, high = key_hash_range(key)
    assert low <= key_hash(topic, key) <= high < 2**40
    assert low == xxh32_intdigest(key) << 8
    assert key_hash(topic, key) & 0xFF == xxh32_intdigest(topic) & 0xFF
