"""Whole records, and properties fields; see records.pyx. A `buffer` has single bytes."""

from mmap import mmap  # noqa: TID251 -- its type; kvstore.files does the mapping

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Buffer = mmap | bytes | bytearray | memoryview
"""Where records are; a memoryview must be one of single bytes, without gaps."""
Facts = tuple[bytes, int, int, int, int, bytes]
"""Topic, queue, offset, system flags, store time in ms, properties."""

def check_record(
    buffer: Buffer, at: int, end: int, position: int, *, property_crc: bool = False
) -> int:
    """The size of the record at index `at` of `buffer`, if it is whole and valid.

    The record must end at or before `end` and say that its position in the log is `position`. Of
    its CRCs the body's is checked, or with `property_crc` the one over the whole record instead (a
    record without it is then damaged). Returns 0 where nothing was written (size and magic 0). For
    a blank record, which takes 8 bytes or more and ends at or before `end`, it returns the negative
    size. Raises RecordDamaged, saying what was expected and found.
    """

def property_crc_problem(
    buffer: Buffer, at: int, size: int, position: int, *, required: bool = False
) -> str:
    """The fault that the CRC over a whole, checked record of `size` bytes at index `at` shows;
    empty if there is none, or if the record carries no such CRC and that is not `required`. Raises
    ValueError if the record is not inside the buffer.
    """

def property_crc_faults(buffer: Buffer, starts: I64, sizes: I64, *, required: bool) -> list[int]:
    """Which of many such records have a fault: their numbers. They begin at indexes `starts`."""

def property_crc_suffix(record: Buffer) -> bytes:
    """The CRC property, whose 20 bytes end a record, for all the bytes before them.

    Size and properties length in `record` must count them already, its properties must be empty or
    end with 0x02, and nothing may change afterwards, the position included.
    """

def facts(buffer: Buffer, at: int, size: int) -> Facts:
    """The parts of the checked record of `size` bytes at index `at` of which its index entry is
    made. No CRC is looked at. Raises RecordDamaged for bytes that are no record.
    """

def find_property(raw: bytes, name: bytes) -> bytes | None:
    """The value of one property as bytes, without decoding the others; None if it is not there.

    Agrees with `decode_properties`: the last non-empty value of that name wins. `name` is UTF-8.
    """

def keys_of(properties: bytes) -> list[bytes]:
    """The keys of a message, in order, given its properties field."""

def decode_properties(raw: bytes) -> dict[str, str]:
    """The pairs in `raw`, read as RocketMQ reads them; a later pair of the same name wins.

    Pairs without a name or without a value (so: anything under 3 characters) are skipped, a value
    may hold 0x01, the last 0x02 may be missing, and invalid UTF-8 becomes U+FFFD. Never raises.
    """
