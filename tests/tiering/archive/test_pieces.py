"""An archive put together of pieces is one like any other, and a piece that lies is found out."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import pytest

from kvstore.errors import ArchiveDamaged, CallerError
from tests.tiering.archive.making import (
    ORIGIN,
    SMALL_BLOCKS,
    MemorySource,
    Queue,
    make,
    plain_queues,
)
from tiering.archive.archive_reader import Archive
from tiering.archive.coder import Coder
from tiering.archive.layout import PartKind
from tiering.archive.pieces import EncodedPiece, PiecesWriter, PieceWriter, check_tail
from tiering.archive.writer import ArchiveSettings
from tiering.keys.crypto import KeysAtHand, TopicKey

LARGE_BLOCKS = ArchiveSettings()
KEYS = {f"topic{n}": TopicKey("first", bytes([n + 1]) * 32) for n in range(3)}
ENCRYPTED = msgspec.structs.replace(
    SMALL_BLOCKS,
    keys=KeysAtHand(
        writing=KEYS, reading={(topic, key.key_id): key for topic, key in KEYS.items()}
    ),
)


def numbered(queues: list[Queue]) -> dict[str, int]:
    """The topics' numbers, by name."""
    return {name: n for n, name in enumerate(sorted({q.topic.name for q in queues}))}


def piece_of(
    queues: list[Queue], settings: ArchiveSettings = SMALL_BLOCKS, *,
    every: list[Queue] | None = None, coder: Coder | None = None,
) -> EncodedPiece:  # fmt: skip
    """A piece of some queues, in which topics have their numbers among those of `every` queue."""
    numbers = numbered(every or queues)
    topics = {numbers[queue.topic.name]: queue.topic for queue in queues}
    writer = PieceWriter(topics, settings, coder or Coder())
    for queue in queues:
        writer.add(numbers[queue.topic.name], queue.queue, list(queue.records.values()))
    return writer.finish()


def join_surveys(
    pieces: list[EncodedPiece], queues: list[Queue], settings: ArchiveSettings = SMALL_BLOCKS
) -> bytes:
    sink = BytesIO()
    topics = {queue.topic.name: queue.topic for queue in queues}
    writer = PiecesWriter(sink, settings, ORIGIN, [topics[name] for name in sorted(topics)])
    for piece in pieces:
        writer.add(piece)
    writer.finish()
    check_tail(
        Archive.open(MemorySource(sink.getvalue()), keys=settings.keys), writer.blocks
    )  # fmt: skip
    return sink.getvalue()


@pytest.mark.parametrize("settings", [SMALL_BLOCKS, ENCRYPTED], ids=["plain", "encrypted"])
def test_pieces_of_whole_queues_make_the_archive_that_one_writer_does(
    settings: ArchiveSettings,
) -> None:
    queues = plain_queues(messages=100)
    pieces = [piece_of([queue], settings, every=queues) for queue in queues]
    assert join_surveys(pieces, queues, settings) == make(queues, settings).data


def test_small_queues_of_a_piece_share_a_group() -> None:
    queues = plain_queues(topics=3, queues=4, messages=3)
    piece = piece_of(queues, LARGE_BLOCKS)
    assert len(piece.columns.blocks.groups[0]) == 1
    assert join_surveys([piece], queues, LARGE_BLOCKS) == make(queues, LARGE_BLOCKS).data


@pytest.mark.parametrize("settings", [SMALL_BLOCKS, ENCRYPTED], ids=["plain", "encrypted"])
def test_topics_of_which_there_is_nothing_have_no_number(settings: ArchiveSettings) -> None:
    queues = plain_queues(topics=3, messages=20)
    left = [queue for queue in queues if queue.topic.name != "topic1"]
    pieces = [piece_of([queue], settings, every=queues) for queue in left]
    assert join_surveys(pieces, queues, settings) == make(left, settings).data


def test_an_archive_of_no_pieces_is_one_of_no_messages() -> None:
    queues = plain_queues()
    nothing = PieceWriter({}, SMALL_BLOCKS, Coder()).finish()
    assert join_surveys([], queues) == join_surveys([nothing], queues) == make([]).data


def test_pieces_out_of_order_are_refused() -> None:
    queues = plain_queues(messages=20)
    pieces = [piece_of([queue], every=queues) for queue in queues[:2]]
    with pytest.raises(CallerError, match="comes after a later one"):
        join_surveys(pieces[::-1], queues)
    with pytest.raises(CallerError, match="comes after a later one"):
        join_surveys([pieces[0], pieces[0]], queues)


class Careless(Coder):
    """Loses a byte of every text."""

    def encode(self, payload: bytes, **how: Any) -> bytes:
        if how.get("kind") == PartKind.BODIES:
            payload = payload[:-1] + b"?"
        return super().encode(payload, **how)


def test_a_piece_that_does_not_give_back_what_was_put_in_is_found_out() -> None:
    queues = plain_queues(messages=20)
    with pytest.raises(ArchiveDamaged, match="does not give back"):
        piece_of(queues, coder=Careless())


@pytest.mark.parametrize("kind", ["rows", "groups"])
def test_a_tail_that_says_something_else_of_the_blocks_is_found_out(kind: str) -> None:
    queues = plain_queues(messages=20)
    piece = piece_of(queues)
    archive = Archive.open(MemorySource(join_surveys([piece], queues)))
    check_tail(archive, piece.columns.blocks)
    columns = getattr(piece.columns.blocks, kind)
    changed: Any = piece.columns.blocks._replace
    for number in range(len(columns)):
        other = list(columns)
        other[number] = columns[number] + (np.arange(len(columns[number])) == 0)
        with pytest.raises(ArchiveDamaged, match="where its blocks are"):
            check_tail(archive, changed(**{kind: tuple(other)}))
