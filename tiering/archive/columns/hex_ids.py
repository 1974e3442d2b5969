"""Hex ids: takes hexadecimal ids out of a text, and puts them back.

The idea: ids of requests, traces and events are random, but written as text. There compression
spends five or six bits on each digit, and each id breaks off the repetition around it. So a run of
digits of an id's length is replaced by one byte that says its length, and its digits go to a stream
of their own, two a byte. The text is then shorter, more uniform, and faster to compress.

Invariants: `restore_ids` returns the input of `extract_ids`, byte for byte; any bytes give a
payload of exactly the expected size, or raise ArchiveDamaged, and nothing is allocated before that
is known.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged

_FIRST_MARK: Final = 0x0E
_LENGTHS: Final = (16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 48, 56, 64, 80, 96, 128)
"""The lengths in digits that a run may have: mark `_FIRST_MARK + i` stands for `_LENGTHS[i]`
digits. The one mark behind these stands for a UUID with its dashes.
"""
_UUID_MARK: Final = _FIRST_MARK + len(_LENGTHS)
_MARKS: Final = len(_LENGTHS) + 1
_MARK_OF: Final = np.zeros(_LENGTHS[-1] + 2, np.int64)
"""Mark by length; 0 is no mark."""
_MARK_OF[np.array(_LENGTHS)] = np.arange(_FIRST_MARK, _UUID_MARK)
_BYTES: Final = [bytes((i,)) for i in range(256)]
_USUAL: Final = 32
"""Digits of the most usual ids: of traces, and of UUIDs without dashes."""
_USUAL_MARK: Final = _BYTES[_FIRST_MARK + _LENGTHS.index(_USUAL)]
_UUID_SIZE: Final = 36
_UUID_DIGITS: Final = 32
_DASHES: Final = (8, 13, 18, 23)
_DASH: Final = b"-"
_DIGITS_OF: Final = np.zeros(256, np.int64)
"""Number of digits by mark."""
_DIGITS_OF[_FIRST_MARK : _FIRST_MARK + _MARKS] = (*_LENGTHS, _UUID_DIGITS)

_LEADING: Final = np.array([8 - (i ^ 255).bit_length() for i in range(256)])
"""The number of ones that a byte begins with, and ends with."""
_TRAILING: Final = np.array([((i + 1) & -(i + 1)).bit_length() - 1 for i in range(256)])


class ExtractedIds(NamedTuple):
    """A text with marks, and the digits that belong in their places, two a byte."""

    text: bytes
    digits: bytes


def extract_ids(payload: bytes) -> ExtractedIds | None:
    """Splits a payload into text and digits. None if it has no ids, or if one of its bytes would
    look like a mark.
    """
    found = np.frombuffer(payload, np.uint8)
    if bool((found - np.uint8(_FIRST_MARK) < _MARKS).any()):
        return None
    is_digit = found - np.uint8(ord("0")) < 10
    is_digit |= found - np.uint8(ord("a")) < 6
    bits = np.packbits(is_digit)
    is_digit |= found == _DASH[0]
    wide = np.packbits(is_digit)
    if np.count_nonzero(wide == 0xFF) != np.count_nonzero(bits == 0xFF):
        begins, ends, marks = _with_dashes(payload, found, *_runs(wide))
    else:
        first, behind = _runs(bits)
        kinds = _MARK_OF[np.minimum(behind - first, len(_MARK_OF) - 1)]
        some = np.flatnonzero(kinds)
        begins, ends, marks = first[some].tolist(), behind[some].tolist(), kinds[some].tolist()
    if not begins:
        return None
    text = [b""] * (2 * len(begins) + 1)
    text[::2] = map(payload.__getitem__, map(slice, (0, *ends), (*begins, len(payload))))
    text[1::2] = map(_BYTES.__getitem__, marks)
    digits = b"".join(map(payload.__getitem__, map(slice, begins, ends)))
    if _UUID_MARK in marks:
        digits = digits.replace(_DASH, b"")
    return ExtractedIds(b"".join(text), bytes.fromhex(digits.decode("ascii")))


def _with_dashes(
    payload: bytes, found: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[list[int], list[int], list[int]]:
    """The begin and end of each id in runs of digits and dashes, and its mark."""
    some = ends - begins >= _LENGTHS[0]
    begins, ends = begins[some], ends[some]
    sizes = ends - begins
    places = np.flatnonzero(found == _DASH[0])
    dashes = np.searchsorted(places, ends) - np.searchsorted(places, begins)
    is_uuid = (sizes == _UUID_SIZE) & (dashes == len(_DASHES))
    for at in _DASHES:
        is_uuid[is_uuid] = found[begins[is_uuid] + at] == _DASH[0]
    marks = np.where(dashes == 0, _MARK_OF[np.minimum(sizes, len(_MARK_OF) - 1)], 0)
    marks[is_uuid] = _UUID_MARK
    # A run with dashes that is no UUID: each piece by itself.
    pieces: list[tuple[int, int, int]] = []
    left = (dashes > 0) & ~is_uuid & (sizes > _LENGTHS[0])
    for begin, end in zip(begins[left].tolist(), ends[left].tolist(), strict=True):
        at = begin
        for piece in payload[begin:end].split(_DASH):
            mark = int(_MARK_OF[min(len(piece), len(_MARK_OF) - 1)])
            if mark:
                pieces.append((at, at + len(piece), mark))
            at += len(piece) + 1
    whole = np.flatnonzero(marks)
    runs = [column[whole].tolist() for column in (begins, ends, marks)]
    if pieces:
        every = sorted([*zip(*runs, strict=True), *pieces])
        runs = [list(column) for column in zip(*every, strict=True)]
    return runs[0], runs[1], runs[2]


def _runs(bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The begin and end of runs of ones: all runs of 16 or more, and some shorter ones."""
    # A run of that length has eight ones in a row that begin where a byte of bits does.
    full = np.flatnonzero(bits == 0xFF)
    if not len(full):
        return full, full
    breaks = np.flatnonzero(np.diff(full) > 1)
    first = full[np.append(0, breaks + 1)]
    behind = full[np.append(breaks, len(full) - 1)] + 1
    padded = np.concatenate((np.zeros(1, np.uint8), bits, np.zeros(1, np.uint8)))
    return first * 8 - _TRAILING[padded[first]], behind * 8 + _LEADING[padded[behind + 1]]


def restore_ids(text: bytes, digits: bytes, size: int) -> bytes:
    """The payload, which must have `size` bytes. Raises ArchiveDamaged."""
    found = _restore_usual(text, digits, size)
    return _restore_any(text, digits, size) if found is None else found


def _restore_usual(text: bytes, digits: bytes, size: int) -> bytes | None:
    """The payload if all ids have as many digits as the most usual ones; None if they have not. It
    takes half the time, since the marks need not be found first.
    """
    count, rest = divmod(2 * len(digits), _USUAL)
    if rest or not count or len(text) + count * (_USUAL - 1) != size:
        return None
    runs = digits.hex("-", _USUAL // 2).encode("ascii").split(_DASH)
    form = text.replace(b"%", b"%%").replace(_USUAL_MARK, b"%b")
    try:
        found = form % tuple(runs)
    except TypeError:
        # As many digits, but fewer or more marks: some ids have another length.
        return None
    return found if len(found) == size else None


def _restore_any(text: bytes, digits: bytes, size: int) -> bytes:
    found = np.frombuffer(text, np.uint8)
    marks = found[np.flatnonzero(found - np.uint8(_FIRST_MARK) < _MARKS)]
    lengths = _DIGITS_OF[marks]
    uuids = np.flatnonzero(marks == _UUID_MARK).tolist()
    total = int(lengths.sum())
    if total != 2 * len(digits) or len(text) - len(marks) + total + 4 * len(uuids) != size:
        raise ArchiveDamaged("the digits of a part do not belong to its text")
    run = digits.hex().encode("ascii")
    ends = list(accumulate(lengths.tolist()))
    runs = list(map(run.__getitem__, map(slice, (0, *ends), ends)))
    for i in uuids:
        one = runs[i]
        runs[i] = b"-".join((one[:8], one[8:12], one[12:16], one[16:20], one[20:]))
    # As a format string to fill in: a loop over the pieces of text takes twice as long.
    form = text.replace(b"%", b"%%")
    for mark in set(marks.tolist()):
        form = form.replace(_BYTES[mark], b"%b")
    return form % tuple(runs)
