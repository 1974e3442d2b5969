"""Columns of integers as archives have them; see int_columns.pyx."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]

CONSTANT: Final[int]
"""The first byte of a column of equal values."""

def write_varint(value: int) -> bytes:
    """`value`, 0 to 2**64 - 1, in 1 to 9 bytes. Below 0xF8 it is the byte itself. Otherwise the
    first byte is 0xF7 plus the number of bytes that follow, which are the value's, the highest
    first.
    """

def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at index `at`, and the index behind it. Raises ArchiveDamaged."""

def write_signed(value: int) -> bytes:
    """`value`, any int64, as a zigzag varint."""

def encode_columns(values: Column, bounds: Column) -> list[bytes]:
    """Encodes one column for each slice of `values`, from `bounds[i]` to `bounds[i + 1]`. Raises
    ValueError for an empty slice, or one that is not in `values`.
    """

def decode_column(data: bytes, at: int, count: int) -> tuple[Column, int]:
    """`count` values that begin at index `at`, and the index behind them. Raises ArchiveDamaged."""
