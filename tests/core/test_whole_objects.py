"""Objects of the core are whole from their beginning: none can be had before it is made, and none
is made anew under those that use it.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.dedup.known_ids import KnownIds
from kvstore.core.encoding import Encoder, PutRoute
from kvstore.core.messages import ExpiryCheck, QueueReader
from kvstore.core.popping.offset_sets import OffsetSet, QueueLocks, Shelf
from kvstore.core.popping.receipts import Delivery, Receipts
from kvstore.core.queue_offsets import QueueOffsets
from kvstore.core.tail import Tail
from kvstore.core.unique_ids import UniqueIds
from tests.core import bare_objects


@pytest.mark.parametrize(
    "kind",
    [
        Encoder, ExpiryCheck, GivenColumns, KnownIds, PutRoute, QueueOffsets, QueueReader, Receipts,
        Tail, UniqueIds,
    ],
)  # fmt: skip
def test_an_object_of_the_core_can_not_be_had_before_it_is_made(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind.__new__(kind)


def test_no_object_of_the_core_that_was_never_made_ends_the_process() -> None:
    """Each class, also one that comes later: see `bare_objects`."""
    assert len(bare_objects.kinds()) > 40
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.core.bare_objects"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr[-2000:]


def test_a_delivery_that_was_not_made_has_no_receipts() -> None:
    with pytest.raises(TypeError, match="not made of receipts"):
        Delivery.__new__(Delivery).receipts(1)
    with pytest.raises(TypeError, match="not made of receipts"):
        Delivery.__new__(Delivery).popped([], 0, 1, 0)


def test_a_set_that_is_made_of_nothing_is_empty() -> None:
    assert OffsetSet.__new__(OffsetSet).lowest() is None
    assert QueueLocks.__new__(QueueLocks).lowest() is None
    assert Shelf.__new__(Shelf).first() is None


def test_given_columns_stay_those_that_were_given() -> None:
    given: Any = GivenColumns(pa.record_batch({"body": [b"1"], "keys": [["one"]]}))
    given.__init__(pa.record_batch({"body": [b"2"], "keys": [["other"]]}))
    assert given.message("t", 0).keys == ("one",)
