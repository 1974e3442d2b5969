"""A read-only reader beside a writer: what retention takes is gone, and never damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import kvstore
from kvstore import (
    Message,
    MessageNotFound,
    OffsetNotFound,
    PullStatus,
    RecordDamaged,
    Retention,
    SegmentDamaged,
    Store,
    StoreConfig,
)
from kvstore.files import LocalFiles
from tests.support.contents import bodies, read_queue
from tests.support.segment_files import segment_path
from tests.support.stores import SEGMENT, Opens, killed

COUNT: Final = 1000
CONFIG: Final = StoreConfig(
    segment_size=SEGMENT,
    retention=Retention(max_bytes=2 * SEGMENT),
    retention_interval=1e6,
    checkpoint_interval=1e6,
    delete_interval=0.0,
)


def fill(store: Store, first: int, count: int = COUNT) -> None:
    store.put_batch(
        [Message("t", b"%0300d" % n, queue=0, keys=[f"k{n}"]) for n in range(first, first + count)]
    )


@pytest.fixture(params=["checkpointed", "tail", "erased", "erased tail"])
def pair(request: Any, opens: Opens) -> tuple[Store, Store]:
    """A writer, and a reader who has the newest messages in RocksDB, or read them from the log."""
    writer = opens(msgspec.structs.replace(CONFIG, secure_erase="erased" in request.param))
    writer.create_topic("t", queues=2)
    fill(writer, 0)
    if "tail" not in request.param:
        writer.checkpoint()
    reader = opens(CONFIG, read_only=True)
    assert reader.bounds("t", 0) == (0, COUNT)
    return writer, reader


READS: Final[list[Callable[[Store], object]]] = [
    lambda s: s.bounds("t", 0),
    lambda s: s.get("t", 0, 0),
    lambda s: s.pull("t", 0, 0),
    lambda s: s.offset_at("t", 0, 1),
    lambda s: s.read_at(0),
    lambda s: s.verify(),
]


@pytest.mark.parametrize("first", range(len(READS)))
@pytest.mark.parametrize("warm", [False, True])
def test_a_reader_finds_gone_what_retention_took_whatever_it_reads_first(
    pair: tuple[Store, Store], first: int, warm: bool
) -> None:
    writer, reader = pair
    if warm:
        assert len(read_queue(reader, "t", 0)) == COUNT
    assert writer.apply_retention() > 2
    low, high = writer.bounds("t", 0)
    assert 0 < low < high == COUNT
    if not writer.config.secure_erase:
        # It may go on reading the segments that it has mapped until it looks.
        reader.bounds("t", 0)
    try:
        READS[first](reader)
    except (OffsetNotFound, MessageNotFound):
        assert first in (1, 4)
    else:
        assert first not in (1, 4)
    assert reader.bounds("t", 0) == (low, COUNT)
    with pytest.raises(OffsetNotFound) as raised:
        reader.get("t", 0, low - 1)
    assert raised.value.min_offset == low
    pulled = reader.pull("t", 0, 0)
    assert (pulled.status, pulled.next_offset) == (PullStatus.OFFSET_TOO_SMALL, low)
    assert [m.offset for m in read_queue(reader, "t", 0)] == list(range(low, COUNT))
    assert reader.query("t", "k0") == []
    assert [m.offset for m in reader.query("t", f"k{COUNT - 1}")] == [COUNT - 1]
    assert reader.verify().problems == []


def test_a_reader_of_whose_segments_none_is_left_has_an_empty_queue(
    pair: tuple[Store, Store],
) -> None:
    writer, reader = pair
    fill(writer, COUNT, 3 * COUNT)
    assert writer.apply_retention() > 10
    assert reader.bounds("t", 0) == (COUNT, COUNT)
    with pytest.raises(OffsetNotFound):
        reader.get("t", 0, COUNT - 1)
    assert reader.pull("t", 0, 5).status is PullStatus.OFFSET_TOO_SMALL
    assert reader.query("t", "k7") == []
    assert reader.verify().problems == []


def test_a_segment_that_is_gone_from_the_middle_is_damage_to_a_reader_as_well(opens: Opens) -> None:
    writer = opens(CONFIG)
    writer.create_topic("t", queues=2)
    fill(writer, 0)
    writer.checkpoint()
    reader = opens(CONFIG, read_only=True)
    lost = next(m.offset for m in read_queue(writer, "t", 0) if m.position > 2 * SEGMENT)
    segment_path(writer.path, 2 * SEGMENT).unlink()
    with pytest.raises(RecordDamaged):
        reader.get("t", 0, lost)
    with pytest.raises(SegmentDamaged):
        reader.read_at(2 * SEGMENT)
    assert reader.bounds("t", 0) == (0, COUNT)
    assert reader.verify().problems


class Meanwhile(LocalFiles):
    """Does something between a reader's looks at the index and at the log."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what: Callable[[], object] | None = what

    def list_dir(self, path: Path) -> list[str]:
        if path.name == "commitlog" and self._what is not None:
            what, self._what = self._what, None
            what()
        return super().list_dir(path)


def test_retention_while_a_reader_opens_is_no_damage_to_it(opens: Opens) -> None:
    writer = opens(CONFIG)
    writer.create_topic("t", queues=2)
    fill(writer, 0)
    writer.checkpoint()
    files = Meanwhile(writer.apply_retention)
    reader = opens(msgspec.structs.replace(CONFIG, files=files), read_only=True)
    assert reader.recovery.damage == []
    assert reader.bounds("t", 0) == writer.bounds("t", 0)
    assert reader.verify().problems == []


def test_what_was_to_be_erased_when_the_process_ended_is_erased_at_the_next_opening(
    opens: Opens,
) -> None:
    store = opens(CONFIG)
    store.close()
    left = segment_path(store.path, 7 * SEGMENT).with_suffix(".gone")
    left.write_bytes(b"secret")
    opens(CONFIG, read_only=True)
    assert left.exists()
    again = opens(CONFIG)
    assert not left.exists()
    assert again.recovery.problems == []


# --- what may be seen ---


def test_a_reader_that_asks_for_what_is_on_the_disk_sees_to_the_last_checkpoint_and_no_further(
    opens: Opens,
) -> None:
    quiet = msgspec.structs.replace(CONFIG, flush_interval=1e6, visibility="flushed")
    writer = opens(quiet)
    writer.create_topic("t", queues=2)
    fill(writer, 0, 10)
    writer.checkpoint()
    fill(writer, 10, 10)
    assert writer.bounds("t", 0) == (0, 10)
    reader = opens(quiet, read_only=True)
    assert reader.bounds("t", 0) == (0, 10)
    assert len(read_queue(reader, "t", 0)) == 10
    assert reader.query("t", "k9")
    assert reader.query("t", "k10") == []
    with pytest.raises(OffsetNotFound):
        reader.get("t", 0, 10)
    assert opens(CONFIG, read_only=True).bounds("t", 0) == (0, 20)
    writer.flush()
    assert writer.bounds("t", 0) == (0, 20)
    assert opens(quiet, read_only=True).bounds("t", 0) == (0, 10)
    writer.close()
    assert opens(quiet, read_only=True).bounds("t", 0) == (0, 20)


def test_opening_for_writing_puts_all_on_the_disk_and_shows_it(
    opens: Opens, tmp_path: Path
) -> None:
    quiet = msgspec.structs.replace(CONFIG, flush_interval=1e6, visibility="flushed")
    writer = opens(quiet)
    writer.create_topic("t", queues=2)
    fill(writer, 0, 10)
    path = killed(writer, tmp_path / "killed")
    with kvstore.open(path, quiet, read_only=True) as reader:
        assert reader.bounds("t", 0) == (0, 0)
    with kvstore.open(path, quiet) as store:
        assert len(bodies(store)["t", 0]) == 10
