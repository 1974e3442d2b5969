"""Fuzzers of the core's functions for HTTP/2. The package `hpack` judges header compression."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from hpack import Decoder, Encoder, HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman

from kvstore.core.transport.hpack import HeaderDecoder, encode_fields
from kvstore.errors import FormatError
from tests.core.fuzzing import Arguments, Fuzzer
from tests.reference import frames as plain

Fields = list[tuple[str, str]]

_CODER: Final = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
_NAMES: Final = (
    ":method", ":path", ":scheme", ":authority", "te", "content-type", "grpc-timeout", "x-mq-id",
    "connection", "a", "Upper", ":status", "x y", "", "grpc-status", "x-bin",
)  # fmt: skip
_VALUES: Final = (
    "POST", "/a.B/C", "http", "trailers", "application/grpc", "", " x", "x\t", "a\0", "é", "0",
    "GET", "v" * 90, "gzip",
)  # fmt: skip
_TABLE_MAX: Final = 4096


# --- HPACK ---


def _data(rng: Random) -> Arguments:
    return (rng.randbytes(rng.choice((0, 1, 3, rng.randint(0, 60), 1500))),)


def _to_decode(rng: Random) -> Arguments:
    return (_CODER.encode(*_data(rng)),)


def _decoded(data: object) -> Any:
    if not isinstance(data, bytes):
        return TypeError
    try:
        return decode_huffman(data)
    except HPACKError:
        return FormatError


def _fields(rng: Random) -> Fields:
    count = rng.choice((0, 1, 3, rng.randint(0, 12)))
    return [(rng.choice(_NAMES), rng.choice(_VALUES)) for _ in range(count)]


def _to_read_blocks(rng: Random) -> Arguments:
    encoder = Encoder()
    blocks = []
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.2:
            encoder.header_table_size = rng.randint(0, _TABLE_MAX)
        fields = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in _fields(rng)]
        blocks.append(encoder.encode(fields, huffman=rng.random() < 0.5))
    return blocks, rng.choice((1 << 20, 100, 1000))


def _read_blocks(blocks: Any, list_max: Any) -> Any:
    decoder = HeaderDecoder()
    return [decoder.decode(block, list_max) for block in blocks]


def _plain_blocks(blocks: Any, list_max: Any) -> Any:
    """The result of hpack."""
    if not all(isinstance(block, bytes) for block in blocks):
        return NotImplemented
    decoder = Decoder(max_header_list_size=1 << 40)
    decoder.max_allowed_table_size = _TABLE_MAX
    found: list[Fields | None] = []
    try:
        for block in blocks:
            raw = decoder.decode(block, raw=True)
            fields = [(bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in raw]
            size = sum(len(name) + len(value) + 32 for name, value in fields)
            found.append(fields if size <= list_max else None)
    except HPACKError:
        return FormatError
    return found


def _to_encode(rng: Random) -> Arguments:
    return (_fields(rng),)


def _encode(fields: Any) -> Any:
    """The list as hpack reads its block."""
    raw = Decoder(max_header_list_size=1 << 40).decode(encode_fields(fields), raw=True)
    return [(bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in raw]


def _encoded(fields: Any) -> Any:
    if not isinstance(fields, list) or not _are_fields([fields]):
        return NotImplemented
    texts = [text for field in fields for text in field]
    return ValueError if any(ord(c) > 0xFF for text in texts for c in text) else fields


def _are_fields(lists: Any) -> bool:
    return all(
        isinstance(field, tuple) and len(field) == 2 and all(isinstance(t, str) for t in field)
        for fields in lists
        for field in fields
    )


# --- frames ---


def _payload(rng: Random, kind: int, stream: int) -> bytes:
    sizes = {2: 5, 3: 4, 6: 8, 8: 4, 4: 6 * rng.randint(0, 3), 7: 8 + rng.randint(0, 4)}
    if kind == 1 and rng.random() < 0.3:
        return bytes(rng.randint(0, 1)) + rng.choice((stream, 0, 7)).to_bytes(4, "big") + bytes(9)
    return rng.randbytes(sizes.get(kind, rng.randint(0, 30)))


def _to_split(rng: Random) -> Arguments:
    out = b""
    for _ in range(rng.randint(0, 6)):
        kind, stream = rng.choice((0, 0, 1, 1, rng.randint(0, 11))), rng.choice((0, 1, 3, 5))
        payload = _payload(rng, kind, stream)
        flags = rng.choice((0, 1, 4, 5, 8, 0x20, 0x2C, rng.randrange(256)))
        out += plain.head(len(payload), kind, flags, stream) + payload
    return out, rng.choice((16384, 20, 1 << 23))


def _to_frame(rng: Random) -> Arguments:
    return rng.randrange(12), rng.randrange(256), rng.getrandbits(31), rng.randbytes(9)


def _framed(kind: int, flags: int, stream: int, payload: object) -> Any:
    if not isinstance(payload, bytes):
        return TypeError
    if not (0 <= kind < 256 and 0 <= flags < 256 and 0 <= stream < 1 << 31):
        return ValueError if max(kind, flags, stream) < 1 << 31 and stream >= 0 else NotImplemented
    return plain.head(len(payload), kind, flags, stream) + payload


def _to_answer(rng: Random) -> Arguments:
    size_max = rng.choice((1, 3, 5, 7, 100, 16384))
    return (
        rng.getrandbits(31),
        rng.randbytes(rng.choice((0, 5))),
        rng.choice((None, rng.randbytes(rng.randint(0, 300)))),
        rng.choice((None, b"", b"trailers")),
        size_max,
    )


def _answered(stream: int, header: object, message: object, trailers: object, size_max: int) -> Any:
    if not isinstance(header, bytes) or isinstance(message, memoryview | bytearray):
        return TypeError
    if not isinstance(message, bytes | None) or not isinstance(trailers, bytes | None):
        return TypeError
    if not 0 < size_max < 1 << 24 or not 0 <= stream < 1 << 31:
        return NotImplemented if abs(size_max) >= 1 << 62 or stream < 0 else ValueError
    return plain.answer(stream, header, message, trailers, size_max)


def _to_read_head(rng: Random) -> Arguments:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C")]
    rng.shuffle(fields)
    if rng.random() < 0.5:
        fields += [(name, value) for name, value in _fields(rng) if name[:1] != ":"]
    else:
        fields += _fields(rng)
    return fields, rng.random() < 0.2


def _head(fields: Any, is_trailer: bool) -> Any:
    if not _are_fields([fields]):
        return NotImplemented
    found = plain.request_head(fields, is_trailer)
    return FormatError if found is None else found


TRANSPORT_FUZZERS: Final = {
    "transport.hpack.huffman_decode": Fuzzer(_to_decode, _decoded),
    "transport.hpack.HeaderDecoder": Fuzzer(_to_read_blocks, _plain_blocks, call=_read_blocks),
    "transport.hpack.encode_fields": Fuzzer(_to_encode, _encoded, call=_encode),
    "transport.h2_frames.split_frames": Fuzzer(_to_split, lambda d, n: plain.split(bytes(d), n)),
    "transport.h2_frames.frame_of": Fuzzer(_to_frame, _framed),
    "transport.h2_frames.answer_frames": Fuzzer(_to_answer, _answered),
    "transport.h2_frames.read_head": Fuzzer(_to_read_head, _head),
}
