"""Header codec: the columns of `header_fields` <-> the payloads of groups' first parts.

The idea: the columns that differ from record to record come first, so that behind them the same
bytes stand in every group. Many groups are encoded at a time. One is decoded by the core
(`group_heads`), but for what is rarely there: further bytes of IPv6 hosts, and CRCs that are not
their bodies'.

Invariant: any bytes decode to as many rows as the directory says, or raise ArchiveDamaged.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from kvstore.core.columns.group_heads import decode_heads
from kvstore.core.columns.int_columns import decode_column, encode_columns, write_varint
from kvstore.core.names import BORN_HOST_V6, STORE_HOST_V6
from kvstore.errors import ArchiveDamaged
from kvstore.record.layout import HOSTS_V6
from tiering.archive.columns.header_fields import HOST_REST, HeaderColumns, OffsetRanges
from tiering.archive.columns.integers import (
    Column,
    encode_by_block,
    encode_column,
    encode_times,
)
from tiering.archive.columns.properties import COLUMNS_FORMAT
from tiering.archive.columns.records import Fields

VERBATIM_FORMAT: Final = 255
"""Format byte of the fixed part of a block that holds whole records."""
CRCS_OMITTED: Final = b"\x00"
"""Behind the columns: each record's body CRC is that of its body, and is not stored."""
CRCS_STORED: Final = b"\x01"
_U32_MAX: Final = 0xFFFF_FFFF


def encode_fixed(fields: Fields, bounds: Column, inner: Column) -> list[bytes]:
    """The payload for each group; group i has the rows `bounds[i]` to `bounds[i + 1]`, and block i
    `inner[i]` to `inner[i + 1]`.
    """
    mostly_constant = (
        fields.flags,
        fields.system_flags,
        fields.version,
        fields.reconsume_times,
        fields.prepared_position,
        fields.born_host,
        fields.store_host,
    )
    varying = (fields.born_at - fields.stored_at, fields.body_size)
    columns = [
        encode_columns(_missing(fields.offset, inner), bounds),
        encode_by_block(fields.position, bounds, inner),
        encode_times(fields.stored_at, fields.position, bounds, inner),
        *(encode_columns(values, bounds) for values in (*varying, *mostly_constant)),
    ]
    start = bytes((COLUMNS_FORMAT,))
    heads = [start + write_varint(count) for count in np.diff(bounds).tolist()]
    wrong = np.logical_or.reduceat(fields.wrong_crcs(), bounds[:-1])
    ends = [CRCS_OMITTED] * len(heads)
    for i in np.flatnonzero(wrong).tolist():
        ends[i] = CRCS_STORED + encode_column(fields.body_crc[int(bounds[i]) : int(bounds[i + 1])])
    if fields.born_more or fields.store_more:
        for i, (begin, end) in enumerate(pairwise(bounds.tolist())):
            rows = range(begin, end)
            ends[i] = (
                _encode_more([fields.born_more[row] for row in rows if row in fields.born_more])
                + _encode_more([fields.store_more[row] for row in rows if row in fields.store_more])
                + ends[i]
            )
    return [b"".join(parts) for parts in zip(heads, *columns, ends, strict=True)]


def _encode_more(hosts: list[bytes]) -> bytes:
    found = np.frombuffer(b"".join(hosts), HOST_REST)
    return b"".join(encode_column(found[name].astype(np.int64)) for name in ("middle", "last"))


def encode_whole(fields: Fields, inner: Column) -> bytes:
    """The payload for a group that holds the records of its rows as they are."""
    begin, end = int(inner[0]), int(inner[-1])
    columns = (fields.position, fields.stored_at, fields.sizes)
    head = bytes((VERBATIM_FORMAT,)) + write_varint(end - begin)
    missing = encode_column(_missing(fields.offset[begin:end], inner - begin))
    return head + missing + b"".join(encode_column(column[begin:end]) for column in columns)


def _missing(offsets: Column, inner: Column) -> Column:
    """The number of offsets that each block lacks before each of its rows."""
    begins = inner[:-1]
    found: Column = offsets - np.arange(len(offsets))
    return found - np.repeat(found[begins], np.diff(inner))


# --- decoding ---


def decode_headers(payload: bytes, queues: Column, ranges: OffsetRanges) -> HeaderColumns:
    """The columns of a group with this fixed part, whose blocks are of these queues. Raises
    ArchiveDamaged.
    """
    numbers, ends, is_whole, is_constant, at = decode_heads(payload, queues, *ranges)
    found = HeaderColumns(numbers, ends, is_whole=is_whole, is_constant=is_constant)
    if not is_whole:
        v6 = found.system_flags[: 1 if is_constant else None] & HOSTS_V6
        for bit in (BORN_HOST_V6, STORE_HOST_V6):
            count = int(np.count_nonzero(found.system_flags & bit)) if v6.any() else 0
            more, at = _read_more(payload, at, count) if count else (b"", at)
            found.more_hosts.append(more)
        form = payload[at : at + 1]
        at += 1
        if form == CRCS_STORED:
            found.body_crc, at = decode_column(payload, at, found.count)
            if (found.body_crc & ~_U32_MAX).any():
                raise ArchiveDamaged("it has a number that does not fit its field")
        elif form != CRCS_OMITTED:
            raise ArchiveDamaged("its body CRCs are of an unknown form")
    if at != len(payload):
        raise ArchiveDamaged(f"{len(payload) - at} bytes follow behind the fixed columns")
    return found


def _read_more(data: bytes, at: int, count: int) -> tuple[bytes, int]:
    """The bytes behind the first 8 of so many IPv6 hosts, and the index behind them."""
    more = np.empty(count, HOST_REST)
    for name in HOST_REST.names or ():
        more[name], at = decode_column(data, at, count)
    return more.tobytes(), at
