"""Numbers that are none, too large, below 0 or of another type, in each field of a put that has a
number: by messages and columns, of a store, a served one and asyncio. Each is refused with
an error that says which row, what was given, and nothing is put.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import kvstore
from kvstore import CallerError, Message, MessageIllegal, Store
from tests.support.served import open_served
from tests.support.stores import SMALL

HUGE: Final = 10**400
INTEGERS: Final = (-1, -(1 << 31), -(1 << 63), (1 << 63) - 1)
"""Those that a column of int64 holds."""
NUMBERS: Final[dict[str, tuple[Any, ...]]] = {
    "queue": (*INTEGERS, 1 << 32, 4),
    "flags": (*INTEGERS, 1 << 32),
    "born_at": INTEGERS[:3],
    "deliver_at": (*INTEGERS, 0, 1_700_000_000, 10**13),
    "expires_at": (*INTEGERS, 0, 1_700_000_000, 10**13),
}
"""Refused values of each column; of the times also seconds, and times after 2100."""
COLUMN: Final = [(name, value) for name, values in NUMBERS.items() for value in values]
OTHERS: Final = (1 << 63, 1 << 64, HUGE, -HUGE, 1e300, math.inf, -math.inf, math.nan, True, "5")
FIELDS: Final = [
    *COLUMN,
    *((name, value) for name in NUMBERS for value in OTHERS),
    *(("delay", value) for value in (*OTHERS, -1, -0.001, 1e-400 - 1e-9, 40 * 366 * 86400.0)
      if value is not True),
    *(("delay_level", value) for value in (*OTHERS, 0, -1, 19) if value is not True),
]  # fmt: skip
"""Refused values of each field of a message."""


@pytest.fixture(params=["store", "served", "asyncio"])
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Calls a method of a store, which is open in one of three ways; `end` is its log's end."""
    kind = request.param
    if kind == "asyncio":
        yield lambda name, *args, **given: asyncio.run(_by_asyncio(tmp_path, name, args, given))
        return
    with (open_served if kind == "served" else kvstore.open)(tmp_path / "s", SMALL) as store:
        store.create_topic("t", queues=4)
        yield lambda name, *args, **given: getattr(store, name)(*args, **given)


async def _by_asyncio(path: Path, name: str, args: Any, given: Any) -> Any:
    async with kvstore.aio.open(path / "s", SMALL) as store:
        await store.create_topic("t", queues=4, exist_ok=True)
        return await getattr(store, name)(*args, **given)


def refused(asked: Any, name: str, *args: Any, **given: Any) -> str:
    """The text of the error by which a call is refused; nothing is put."""
    before = asked("stats").end_position
    with pytest.raises(CallerError) as raised:
        asked(name, *args, **given)
    assert asked("stats").end_position == before
    assert asked("timers").count == 0
    return str(raised.value)


def test_a_field_of_a_message_is_refused_by_each_call(asked: Any) -> None:
    for name, value in FIELDS:
        bad = Message("t", b"x", **{name: value})
        good = Message("t", b"x")
        one = refused(asked, "put", "t", b"x", **{name: value})
        assert name in one or "queue" in one, (name, value, one)
        said = refused(asked, "put_batch", [good, good, bad, good])
        assert said == f"message 2 of 4: {one}"
        if not name.startswith("de"):
            said = refused(asked, "prepare_batch", [good, bad], group="g")
            assert said.startswith("message 1 of 2: ")


def test_a_number_of_a_column_is_refused_with_its_row_as_by_a_put(asked: Any) -> None:
    for name, value in COLUMN:
        one = refused(asked, "put", "t", b"x", **{name: value})
        for values in ([None, None, value, None], [value] * 4):
            rows = pa.record_batch({"body": [b"x"] * 4, name: pa.array(values, pa.int64())})
            row = values.index(value)
            said = refused(asked, "put_columns", "t", rows)
            assert said == f"row {row} of 4: {one}"


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_64_bits_with_a_sign_do_not_hold_is_refused_with_its_row(
    asked: Any, name: str
) -> None:
    for value in (1 << 63, (1 << 64) - 1):
        rows = pa.record_batch({"body": [b"x"] * 2, name: pa.array([None, value], pa.uint64())})
        said = refused(asked, "put_columns", "t", rows)
        assert said.startswith("row 1 of 2: ")
        assert f" {value}" in said


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.bool_(), pa.string()])
def test_a_column_of_another_type_is_refused_with_its_name(
    asked: Any, name: str, kind: Any
) -> None:
    values = {pa.string(): ["5", "nan"], pa.bool_(): [True, False]}
    for some in (values.get(kind, [math.inf, math.nan]), values.get(kind, [1.0, None])):
        rows = pa.record_batch({"body": [b"x"] * 2, name: pa.array(some, kind)})
        said = refused(asked, "put_columns", "t", rows)
        assert f"the column {name!r} is " in said


@pytest.mark.parametrize("name", ["born_at", "deliver_at", "expires_at"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_before_1970_or_beyond_all_numbers_is_refused_with_its_row(
    asked: Any, name: str, unit: str
) -> None:
    most = (1 << 63) - 1
    values = [-1, -most, *([most] if name != "born_at" or unit == "s" else [])]
    for value in values:
        rows = pa.record_batch(
            {"body": [b"x"] * 2, name: pa.array([None, value], pa.timestamp(unit))}
        )
        said = refused(asked, "put_columns", "t", rows)
        assert said.startswith("row 1 of 2: ")


@pytest.mark.parametrize("value", [*OTHERS, -1, -0.001, 30 * 86400.0 + 1])
def test_an_immunity_is_refused(asked: Any, value: Any) -> None:
    message = Message("t", b"x")
    for said in (
        refused(asked, "prepare", "t", b"x", group="g", immunity=value),
        refused(asked, "prepare_batch", [message], group="g", immunity=value),
    ):
        assert "immunity is " in said
    assert asked("transactions").count == 0


def test_the_errors_are_illegal_messages(store: Store) -> None:
    for name, value in COLUMN:
        with pytest.raises(MessageIllegal):
            store.put("t", b"x", **{name: value})
