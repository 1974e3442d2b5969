"""Checking an archive of odd records says what is wrong with them, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rocketmq.logs import NOW, record
from tests.tiering.archive.making import Queue, make
from tiering.archive.archive_check import archive_problems
from tiering.archive.manifest import ArchivedTopic

NAMES = st.sampled_from(
    [b"KEYS", b"UNIQ_KEY", b"TAGS", b"x", b"", b"\xff", b"KEYS ", b"aKEYS", b"UNIQ_KEY\x01"]
)
VALUES = st.lists(
    st.sampled_from(
        [b"a", b"b", b" ", b"  ", b"\x01", b"\xff\xfe", b"KEYS\x01k", b"UNIQ_KEY", b"\0"]
    ),
    max_size=4,
).map(b"".join)
PROPERTIES = st.builds(
    lambda pairs, end, begin: begin + b"\x02".join(n + b"\x01" + v for n, v in pairs) + end,
    st.lists(st.tuples(NAMES, VALUES), max_size=5),
    st.sampled_from([b"", b"\x02", b"\x02\x02"]),
    st.sampled_from([b"", b"", b"\x02"]),
)


def queue(*properties: bytes, key_index: str = "all") -> Queue:
    records, position = {}, 0
    for offset, field in enumerate(properties):
        records[offset] = record(
            position, b"body", topic="t", queue=0, offset=offset, stored_at=NOW, properties=field
        )
        position += len(records[offset])
    return Queue(ArchivedTopic(name="t", id=5, queues=1, key_index=key_index), 0, records)


@given(
    fields=st.lists(PROPERTIES, min_size=1, max_size=6), level=st.sampled_from(["all", "unique"])
)
def test_any_keys_are_in_the_index_as_the_records_have_them(
    fields: list[bytes], level: str
) -> None:
    archive, _ = make([queue(*fields, key_index=level)]).open()
    assert list(archive_problems(archive)) == []


@pytest.mark.parametrize("at", [8, -7], ids=["the sum", "the body"])
def test_a_record_that_is_damaged_itself_is_the_only_problem(at: int) -> None:
    """Its keys are in the index, since it is kept as it is; they can't be held against it."""
    odd = queue(b"KEYS\x01a\x02", b"KEYS\x01b c\x02", b"KEYS\x01d\x02")
    raw = bytearray(odd.records[1])
    raw[raw.index(b"body") if at < 0 else at] ^= 1
    odd.records[1] = bytes(raw)
    archive, _ = make([odd]).open()
    (problem,) = archive_problems(archive)
    assert "body CRC" in problem.reason
