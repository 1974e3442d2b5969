"""Rows in order; see sorting.pyx."""

from typing import Any

from numpy.typing import NDArray

def sort_rows(rows: NDArray[Any] | bytes, size: int) -> bytes:
    """Rows of `size` bytes each by their first 8, a number with a sign in the machine's order of
    bytes. Rows with one number stay as they came. Other threads run meanwhile. Raises ValueError
    for rows of less than 8 bytes or that are not whole, and MemoryError.
    """
