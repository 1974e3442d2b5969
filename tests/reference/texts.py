"""Texts in a buffer, taken one by one: split, numbered, parsed and hashed as the core does it.

The idea: a text is a bytes object here, and fields are split with `split` and `partition`.
"""

from __future__ import annotations

import re
from zlib import crc32

from xxhash import xxh32_intdigest

Split = tuple[list[tuple[bytes, ...]], list[int], list[bytes], list[list[tuple[int, bytes]]]]
"""Shapes; each field's; names; by name the values, each behind the number of its field."""

_DIGITS = b"0123456789"


def shape_of(field: bytes) -> tuple[bytes, ...]:
    """The names of a field, and its ending."""
    if not field:
        return (b"\0",)
    pairs = field.removesuffix(b"\2").split(b"\2")
    if any(b"\1" not in pair for pair in pairs):
        return (b"\2",)
    end = b"\1" if field.endswith(b"\2") else b"\0"
    return (*(pair.partition(b"\1")[0] for pair in pairs), end)


def split_fields(fields: list[bytes]) -> Split:
    """See `kvstore.core.columns.packed_texts`."""
    shapes, names = dict.fromkeys(map(shape_of, fields)), dict[bytes, list[tuple[int, bytes]]]()
    for row, field in enumerate(fields):
        pairs = [pair.partition(b"\1") for pair in field.removesuffix(b"\2").split(b"\2") if field]
        # The names of a field that is kept whole are numbered on the way to where it fails.
        for name, found, _ in pairs:
            if not found:
                break
            names.setdefault(name, [])
        if shape_of(field) == (b"\2",):
            names.setdefault(b"", []).append((row, field))
            continue
        for name, _, value in pairs:
            names[name].append((row, value))
    numbers = {shape: number for number, shape in enumerate(shapes)}
    return list(shapes), [numbers[shape_of(f)] for f in fields], list(names), list(names.values())


def number_texts(texts: list[bytes], most: int) -> tuple[list[int], list[int]] | None:
    """See `kvstore.core.columns.packed_texts`."""
    every = list(dict.fromkeys(texts))
    if len(every) > max(most, 0):
        return None
    return [every.index(text) for text in texts], [texts.index(text) for text in every]


def parse_ids(texts: list[bytes]) -> list[list[int]] | None:
    """See `kvstore.core.columns.packed_texts`."""
    if any(len(text) != 32 or text.strip(b"0123456789ABCDEF") for text in texts):
        return None
    raw = [bytes.fromhex(text.decode()) for text in texts]
    source = [int.from_bytes(one[:8], "big", signed=True) for one in raw]
    parts = ((8, 10), (10, 14), (14, 16))
    return [source, *([int.from_bytes(one[a:b], "big") for one in raw] for a, b in parts)]


def parse_numbers(texts: list[bytes]) -> tuple[list[int], int, int] | None:
    """See `kvstore.core.columns.packed_texts`."""
    stems = {text.rstrip(_DIGITS) for text in texts}
    if len(stems) != 1:
        return None
    stem = len(stems.pop())
    digits = [text[stem:] for text in texts]
    sizes = set(map(len, digits))
    if not 0 < min(sizes) <= max(sizes) <= 18:
        return None
    numbers = list(map(int, digits))
    if [b"%d" % number for number in numbers] == digits:
        return numbers, stem, 0
    return (numbers, stem, sizes.pop()) if len(sizes) == 1 else None


def hash_texts(texts: list[bytes], by_word: bool) -> tuple[list[int], list[int]]:
    """See `kvstore.core.columns.packed_texts`."""
    words = [(row, w) for row, t in enumerate(texts) for w in (t.split(b" ") if by_word else [t])]
    return [xxh32_intdigest(w) for _, w in words if w], [row for row, w in words if w]


def crc_texts(texts: list[bytes]) -> list[int]:
    """See `kvstore.core.columns.packed_texts`."""
    return list(map(crc32, texts))


_LENGTHS = (16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 48, 56, 64, 80, 96, 128)
_MARKS = {length: bytes((0x0E + i,)) for i, length in enumerate(_LENGTHS)}
_UUID_MARK = bytes((0x0E + len(_LENGTHS),))
_UUID = re.compile(rb"-".join(b"[0-9a-f]{%d}" % size for size in (8, 4, 4, 4, 12)))


def extract_ids(payload: bytes) -> tuple[bytes, bytes] | None:
    """See `kvstore.core.columns.hex_ids`."""
    digits = []

    def marked(piece: re.Match[bytes]) -> bytes:
        found = piece.group()
        mark = _UUID_MARK if b"-" in found else _MARKS.get(len(found))
        if mark is None:
            return found
        digits.append(bytes.fromhex(found.replace(b"-", b"").decode()))
        return mark

    def in_run(run: re.Match[bytes]) -> bytes:
        if _UUID.fullmatch(run.group()):
            return marked(run)
        return re.sub(rb"[0-9a-f]+", marked, run.group())

    if re.search(rb"[\x0e-\x1f]", payload):
        return None
    text = re.sub(rb"[0-9a-f-]+", in_run, payload)
    return (text, b"".join(digits)) if digits else None


def restore_ids(text: bytes, digits: bytes) -> bytes | None:
    """The same back; None where the digits do not belong to the text."""
    lengths = {mark: length for length, mark in _MARKS.items()} | {_UUID_MARK: 32}
    left = digits.hex().encode()

    def put(mark: re.Match[bytes]) -> bytes:
        nonlocal left
        length = lengths[mark.group()]
        found, left = left[:length], left[length:]
        if len(found) < length:
            left = b"too few"
        if mark.group() != _UUID_MARK:
            return found
        return b"-".join((found[:8], found[8:12], found[12:16], found[16:20], found[20:]))

    payload = re.sub(rb"[\x0e-\x1f]", put, text)
    return None if left else payload
