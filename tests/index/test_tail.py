"""The tail's keys: texts that are hashed when somebody asks, in whatever order that comes."""

from __future__ import annotations

from array import array

import pytest
from xxhash import xxh32_intdigest

from kvstore.core.hashing import SEPARATOR
from kvstore.index.tail import Tail

QUEUE = 7 << 32 | 3


def digest(key: str) -> int:
    return xxh32_intdigest(key.encode())


def put(tail: Tail, *rows: list[str]) -> None:
    """Add rows, each with these keys; row n of all stands at position 100 * n."""
    first = len(tail)
    numbers = list(range(first, first + len(rows)))
    tail.add(
        [QUEUE] * len(rows), numbers, [100 * n for n in numbers], [100] * len(rows),
        [0] * len(rows), 5,
    )  # fmt: skip
    text = SEPARATOR.join(key for keys in rows for key in keys)
    tail.add_keys(text, array("I", map(len, rows)))


def columns(tail: Tail) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in tail.key_columns()), strict=True))


def test_keys_are_found_as_they_come() -> None:
    tail = Tail(0)
    put(tail, ["a", "b"], [], ["a"])
    assert tail.find_key(digest("a") << 8) == [0, 200]
    put(tail, ["b"])
    tail.add_one(QUEUE, 4, 400, 100, 0, 5, SEPARATOR.join(["a", "c"]), 2)
    assert tail.find_key(digest("a") << 8) == [0, 200, 400]
    assert tail.find_key(digest("b") << 8) == [0, 300]
    assert tail.find_key(digest("d") << 8) == []
    assert tail.keys_held == 6


def test_rows_without_keys_are_counted() -> None:
    """Of a topic whose keys are not indexed, before and between others."""
    tail = Tail(0)
    put(tail, [], [])
    tail.add_one(QUEUE, 2, 200, 100, 0, 5, "", 0)
    put(tail, ["a"])
    tail.add_one(QUEUE, 4, 400, 100, 0, 5, "", 0)
    tail.add_one(QUEUE, 5, 500, 100, 0, 5, "a", 1)
    assert tail.find_key(digest("a") << 8) == [300, 500]
    assert columns(tail) == [(digest("a"), 300, QUEUE), (digest("a"), 500, QUEUE)]


def test_a_checkpoint_has_the_keys_of_the_log_first_and_leaves_them_to_be_found() -> None:
    tail = Tail(0)
    tail.add([QUEUE], [0], [0], [100], [0], [5])
    tail.add_digests([QUEUE, QUEUE], [0, 50], [digest("a"), digest("b")])
    put(tail, ["b"], ["c", "a"])
    expected = [("a", 0), ("b", 50), ("b", 100), ("c", 200), ("a", 200)]
    assert columns(tail) == [(digest(key), position, QUEUE) for key, position in expected]
    assert tail.find_key(digest("a") << 8) == [0, 200]
    assert tail.find_key(digest("b") << 8) == [50, 100]


@pytest.mark.parametrize("looked", [False, True])
def test_what_a_failed_put_added_is_gone_in_every_way_of_looking(looked: bool) -> None:
    """Also where somebody looked in between, and where adding it ended half-way."""
    tail = Tail(0)
    put(tail, ["a"], [])
    mark = tail.mark()
    put(tail, ["a", "b"], ["b"])
    tail.offsets.append(4)
    if looked:
        assert tail.find_key(digest("b") << 8) == [200, 300]
        assert tail.visible(QUEUE, 1000) == (0, 4)
    tail.cut(mark)
    assert len(tail) == 2
    assert tail.find_key(digest("b") << 8) == []
    assert tail.visible(QUEUE, 1000) == (0, 2)
    assert columns(tail) == [(digest("a"), 0, QUEUE)]
    put(tail, ["b"])
    assert tail.find_key(digest("b") << 8) == [200]
    assert tail.visible(QUEUE, 1000) == (0, 3)
    assert columns(tail) == [(digest("a"), 0, QUEUE), (digest("b"), 200, QUEUE)]
    assert list(tail.offsets) == [0, 1, 2]
