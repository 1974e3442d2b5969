"""Values: the two shapes of a message, as it is put and as the log holds it.

The idea: plain typed values. They are msgspec Structs with `gc=False` (none can be part of a
cycle), which makes them cheap to create by the hundred thousand. Parts that readers seldom ask for
(properties, hosts, ids) are decoded when asked for.

Invariant: a `StoredMessage` is complete; reading a field never touches the disk.
"""

from __future__ import annotations

import msgspec

from kvstore.core.records import decode_properties
from kvstore.record.ids import unpack_host
from kvstore.record.names import KEYS, MESSAGE_GROUP, RESERVED, TAGS, UNIQUE_ID


class StoredMessage(msgspec.Struct, gc=False, eq=False):
    """A message as the log holds it.

    `body` is as it was put (decompressed). `position` and `size` are bytes in the log, `offset` the
    place in the queue; times are milliseconds since the epoch. `properties` are all the record's
    properties, the system's own (KEYS, TAGS, UNIQ_KEY ...) included; `user_properties` are only the
    caller's. Hosts are `(address, port)`."""

    topic: str
    queue: int
    offset: int
    position: int
    size: int
    body: bytes
    raw_properties: bytes
    flags: int
    system_flags: int
    born_at: int
    stored_at: int
    raw_born_host: bytes
    raw_store_host: bytes
    reconsume_times: int
    prepared_position: int
    body_crc: int
    version: int = 1
    _properties: dict[str, str] | None = None

    def __eq__(self, other: object) -> bool:
        """Equal in every field of the record, whether or not the properties were looked at."""
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return _record_of(self) == _record_of(other)

    def __ne__(self, other: object) -> bool:
        """The contrary; a Struct's own would go by identity."""
        return not self == other

    def __hash__(self) -> int:
        return hash((self.position, self.topic, self.queue, self.offset))

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the record, by name."""
        found = self._properties
        if found is None:
            found = self._properties = decode_properties(self.raw_properties)
        return found

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the caller set: all but those with a reserved name."""
        return {k: v for k, v in self.properties.items() if k not in RESERVED}

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys, in order."""
        return [k for k in self.properties.get(KEYS, "").split(" ") if k]

    @property
    def message_id(self) -> str:
        """The unique id given at the put; the position id if the record carries none."""
        return self.properties.get(UNIQUE_ID) or self.position_id

    @property
    def message_group(self) -> str | None:
        """The group whose messages are kept in order, or None."""
        return self.properties.get(MESSAGE_GROUP)

    @property
    def position_id(self) -> str:
        """RocketMQ's offset message id: store host and position in upper-case hex, 32 or 56
        characters.
        """
        return (self.raw_store_host + self.position.to_bytes(8, "big")).hex().upper()

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the producer."""
        return unpack_host(self.raw_born_host)

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the store that wrote the record."""
        return unpack_host(self.raw_store_host)


def _record_of(message: StoredMessage) -> tuple[object, ...]:
    return tuple(
        getattr(message, name) for name in message.__struct_fields__ if name != "_properties"
    )
