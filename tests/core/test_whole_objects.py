"""Objects of the core are whole from their beginning: none can be had before it is made, and none
is made anew under those that use it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.encoding import Encoder
from kvstore.core.messages import QueueReader
from kvstore.core.popping.offset_sets import OffsetSet, QueueLocks, Shelf
from kvstore.core.popping.receipts import Receipts
from kvstore.core.queue_offsets import QueueOffsets
from kvstore.core.tail import Tail
from kvstore.core.unique_ids import UniqueIds


@pytest.mark.parametrize(
    "kind", [Encoder, GivenColumns, QueueOffsets, QueueReader, Receipts, Tail, UniqueIds]
)
def test_an_object_of_the_core_can_not_be_had_before_it_is_made(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind.__new__(kind)


def test_a_set_that_is_made_of_nothing_is_empty() -> None:
    assert OffsetSet.__new__(OffsetSet).lowest() is None
    assert QueueLocks.__new__(QueueLocks).lowest() is None
    assert Shelf.__new__(Shelf).first() is None


def test_given_columns_stay_those_that_were_given() -> None:
    given: Any = GivenColumns(pa.record_batch({"body": [b"1"], "keys": [["one"]]}))
    given.__init__(pa.record_batch({"body": [b"2"], "keys": [["other"]]}))
    assert given.message("t", 0).keys == ("one",)
