"""Block: consecutive messages of one queue <-> three coded parts.

The idea: blocks are encoded many at a time, because with thousands of queues in one segment a block
has a dozen messages, and numpy pays per call. They are decoded one at a time and lazily: the fixed
columns first, properties and bodies when somebody asks for a message.

Invariants: the exact bytes of every record come back, since every block is rebuilt and compared
when it is encoded, and kept as it is where that fails; any bytes decode to a block or
ArchiveDamaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.record.values import StoredMessage
from tiering.archive.coder import Coder
from tiering.archive.layout import BLOCK_BYTES_DEFAULT
from tiering.archive.records import Fields


class BlockSpan(NamedTuple):
    """Which rows of Fields, one behind the other, are to be a block: held messages of one queue, in
    the order of their offsets. `topic_number` is archive-local, `secret` the topic's key if it is
    encrypted.
    """

    topic: str
    queue: int
    start: int
    stop: int
    topic_number: int = 0
    secret: bytes | None = None


class EncodedBlock(NamedTuple):
    """A block as it is written, and its row of the directory but for topic and place."""

    data: bytes
    """The three parts, one behind the other."""
    part_sizes: tuple[int, int, int]
    decoded_sizes: tuple[int, int, int]
    messages: int
    raw_bytes: int
    first_offset: int
    last_offset: int
    first_position: int
    last_position: int
    least_stored_at: int
    greatest_stored_at: int


def cut(
    sizes: NDArray[np.int64], start: int, stop: int, block_bytes: int = BLOCK_BYTES_DEFAULT
) -> list[tuple[int, int]]:
    """The rows from `start` to `stop` in stretches of at most `block_bytes`, or of one row."""
    raise NotImplementedError


def encode_blocks(fields: Fields, spans: Sequence[BlockSpan], coder: Coder) -> list[EncodedBlock]:
    """The blocks of many queues at once: give it some megabytes, whatever topics and queues they
    are of (one call a queue costs several times as much where queues are small).
    """
    raise NotImplementedError


def decode_block(
    data: bytes | memoryview,
    part_sizes: tuple[int, int, int],
    decoded_sizes: tuple[int, int, int],
    coder: Coder,
    *,
    topic: str,
    queue: int,
    topic_number: int = 0,
    secret: bytes | None = None,
    archive: str = "",
    number: int = -1,
) -> Block:
    """A block from its three parts; `archive` and `number` are for its errors.

    Decodes, and so checks, the fixed part at once, the others when they are needed. Raises
    ArchiveDamaged.
    """
    raise NotImplementedError


class Block:
    """Messages of one queue; see the module. Any number of threads may read it."""

    topic: str
    queue: int
    count: int
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    stored_at: NDArray[np.int64]
    memory_bytes: int
    """About what it takes in a cache, all parts decoded."""

    def check(self) -> None:
        """Decode all parts. Raises ArchiveDamaged."""

    def messages(self, start: int, stop: int, *, check_crc: bool = True) -> list[StoredMessage]:
        """The messages of the rows from `start` to `stop`, as `kvstore.record.decode.decode` gives
        them; raises what it raises.
        """
        raise NotImplementedError

    def record(self, row: int) -> bytes:
        """One record as it was in the log."""
        raise NotImplementedError

    def records(self) -> list[bytes]:
        """All records as they were in the log."""
        raise NotImplementedError
