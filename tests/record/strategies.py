"""Messages and bytes for the property tests of the codec."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from zlib_ng.zlib_ng import crc32

from kvstore.core.messages import StoredMessage
from kvstore.core.names import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from kvstore.record.layout import CRC_MASK, HOSTS_V6
from tests.reference.encode import encode_record

U32: Final = st.integers(0, 2**32 - 1)
I32: Final = st.integers(-(2**31), 2**31 - 1)
I64: Final = st.integers(-(2**63), 2**63 - 1)
POSITIONS: Final = st.integers(0, 2**63 - 1)

PROPERTY_TEXT: Final = st.text(
    st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=20
)
PROPERTIES: Final = st.dictionaries(PROPERTY_TEXT, PROPERTY_TEXT, max_size=6)


def text_of_bytes(most: int) -> st.SearchStrategy[str]:
    """Text whose UTF-8 has at most `most` bytes."""
    return st.text(max_size=most).filter(lambda text: len(text.encode()) <= most)


@st.composite
def stored_messages(draw: st.DrawFn, plain: bool = False) -> StoredMessage:
    """A message as `decode(..., raw_body=True)` gives it, every field at random.

    `plain` ones are those `decode` has a shortcut for: V1, IPv4, nothing compressed.
    """
    version = 1 if plain else draw(st.sampled_from((1, 2)))
    flags = draw(U32)
    if plain:
        flags &= ~(HOSTS_V6 | COMPRESSED)
    topic = draw(text_of_bytes(127 if version == 1 else 300))
    body = draw(st.binary(max_size=200))
    message = StoredMessage(
        topic=topic,
        queue=draw(U32),
        offset=draw(I64),
        position=draw(POSITIONS),
        size=0,
        body=body,
        raw_properties=draw(st.binary(max_size=200)),
        flags=draw(U32),
        system_flags=flags,
        born_at=draw(I64),
        stored_at=draw(I64),
        raw_born_host=draw(hosts(flags & BORN_HOST_V6)),
        raw_store_host=draw(hosts(flags & STORE_HOST_V6)),
        reconsume_times=draw(I32),
        prepared_position=draw(I64),
        body_crc=crc32(body) & CRC_MASK,
        version=version,
    )
    message.size = len(encode_record(message))
    return message


def hosts(v6: int) -> st.SearchStrategy[bytes]:
    """A packed host of the kind asked for."""
    size = 20 if v6 else 8
    return st.binary(min_size=size, max_size=size)
