"""Names and queue numbers as callers give them."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.errors import MessageIllegal
from kvstore.record.validate import check_group, check_topic


@pytest.mark.parametrize(
    "name",
    ["t", "Orders_2-b|c%d", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250, "%LMQ%x"],
)
def test_a_good_topic_gives_its_bytes(name: str) -> None:
    assert check_topic(name) == name.encode()
    assert check_topic(name) == name.encode(), "the second time from memory"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "empty"),
        ("t" * 128, "at most 127"),
        ("%RETRY%" + "g" * 249, "at most 255"),
        ("%DLQ%" + "g" * 251, "at most 255"),
        ("%LMQ%" + "g" * 200, "at most 127"),
        ("a b", "other than"),
        ("a.b", "other than"),
        ("../x", "other than"),
        ("a\n", "other than"),
        ("tüp", "other than"),
        ("٣", "other than"),
        ("\ud800", "other than"),
        (None, "None is not a str"),
        (b"t", "not a str"),
        ([], "not a str"),
    ],
)
def test_a_bad_topic_is_refused(name: Any, what: str) -> None:
    for _ in range(2):
        with pytest.raises(MessageIllegal, match=what):
            check_topic(name)


def test_a_group_has_up_to_120_characters() -> None:
    assert check_group("g" * 120) == b"g" * 120
    bad: list[Any] = ["", "g" * 121, "a b", "%RETRY%" + "g" * 120, None, {}]
    for name in bad:
        with pytest.raises(MessageIllegal, match="group"):
            check_group(name)
