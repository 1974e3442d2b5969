"""Header compression agrees with the package `hpack` in both directions, whatever the order of
lists and sizes; and with the examples of RFC 7541.
"""

from __future__ import annotations

from typing import Final

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.transport.hpack import HeaderDecoder, encode_fields
from kvstore.errors import FormatError

Fields = list[tuple[str, str]]

LIMIT: Final = 1 << 20
# Few names and values, so that fields come again; others of any bytes.
TEXTS: Final = st.sampled_from(["", "a", "grpc-status", ":path", "0", "x" * 300]) | st.text(
    st.characters(max_codepoint=0xFF), max_size=40
)
LISTS: Final = st.lists(
    st.tuples(
        st.lists(st.tuples(TEXTS, TEXTS), max_size=6),
        st.none() | st.integers(0, 5000),
        st.booleans(),
    ),
    max_size=8,
)


def as_bytes(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]


@given(st.lists(st.lists(st.tuples(TEXTS, TEXTS), max_size=6), max_size=4))
def test_hpack_reads_the_blocks_that_the_core_writes_also_several_as_one(
    lists: list[Fields],
) -> None:
    theirs = Decoder(max_header_list_size=LIMIT)
    theirs.max_allowed_table_size = 0  # no block needs a table
    found = theirs.decode(b"\x20" + b"".join(map(encode_fields, lists)), raw=True)
    expected = [field for fields in lists for field in fields]
    assert [(bytes(name), bytes(value)) for name, value in found] == as_bytes(expected)


@given(LISTS)
def test_the_core_reads_the_blocks_that_hpack_writes(
    lists: list[tuple[Fields, int | None, bool]],
) -> None:
    theirs, ours = Encoder(), HeaderDecoder()
    for fields, size, is_coded in lists:
        if size is not None:
            theirs.header_table_size = min(size, 4096)
        assert ours.decode(theirs.encode(as_bytes(fields), huffman=is_coded), LIMIT) == fields


def test_a_list_above_its_limit_is_left_out_and_the_table_goes_on() -> None:
    theirs, ours = Encoder(), HeaderDecoder()
    first = [(b"x-one", b"1"), (b"x-two", b"2" * 100)]
    assert ours.decode(theirs.encode(first), 100) is None
    assert ours.decode(theirs.encode(first), LIMIT) == [("x-one", "1"), ("x-two", "2" * 100)]


def test_the_examples_of_appendix_c_4_are_read() -> None:
    ours = HeaderDecoder()
    request = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
    ]
    blocks = {
        "828684418cf1e3c2e5f23a6ba0ab90f4ff": request,
        "828684be5886a8eb10649cbf": [*request, ("cache-control", "no-cache")],
    }
    for block, fields in blocks.items():
        assert ours.decode(bytes.fromhex(block), LIMIT) == fields


@pytest.mark.parametrize(
    "block",
    [
        "80",  # field 0
        "be",  # a field that the table lacks
        "3fe21f",  # a table of 4,097 bytes
        "8220",  # another size of the table behind a field
        "ffffffffff7f",  # a number too large
        "ff",  # a number that is cut
        "0001",  # a text that is cut
        "0081ff00",  # a Huffman code of 8 bits of padding
        "00811800",  # padding by zeros
    ],
)
def test_what_is_no_block_is_refused(block: str) -> None:
    with pytest.raises(FormatError):
        HeaderDecoder().decode(bytes.fromhex(block), LIMIT)
