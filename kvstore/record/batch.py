"""The hot half of the codec: many messages into one run of record bytes.

The idea: two passes. `prepare` does, outside every lock, all that doesn't depend on where a message will
stand: checks, properties, CRC, hashes. `encode` does the rest under the log's lock: queue offset, position,
store time, one `Struct.pack` and one `b"".join` for the whole batch. Both are plain loops over locals,
because work per message in Python is what a put costs; a compiled twin can replace this module.

Invariant: `prepare` raises before anything is changed; `encode` can't fail on a prepared draft.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple, Protocol

from xxhash import xxh3_64_intdigest
from zlib_ng.zlib_ng import crc32

from kvstore.errors import MessageIllegal, MessageTooLarge, PropertiesTooLarge
from kvstore.record.compression import codec_flags, compress
from kvstore.record.hashes import tag_hash
from kvstore.record.ids import id_prefix, month_start_ms
from kvstore.record.names import (
    KEYS,
    MESSAGE_GROUP,
    MULTI_TAG,
    PROPERTY_CRC,
    RESERVED,
    TAGS,
    TRANSIENT_PREFIX,
    UNIQUE_ID,
)
from kvstore.record.values import Message

_HEX4: Final = [f"{i:04X}" for i in range(1 << 16)]
_LENGTHS: Final = [i.to_bytes(2, "big") for i in range(1 << 15)]
_CRC_MASK: Final = 0x7FFFFFFF

_UNIQUE: Final = UNIQUE_ID + "\x01"
_KEYS: Final = KEYS + "\x01"
_TAGS: Final = TAGS + "\x01"

# size, magic, body crc, queue id, flags, queue offset, position, system flags, born at, born host,
# stored at, (store host, reconsume times, prepared position), body length; see docs/log-format.md
_HEADER_V4: Final = Struct(">IIIIIQQIQ8sQ20sI")
_HEADER_V6: Final = Struct(">IIIIIQQIQ20sQ32sI")


class TopicFacts(Protocol):
    """What putting needs to know of a topic."""

    name: str
    base: int
    """Topic id << 32: a queue's key in memory is `base + queue`."""
    write_queues: int
    magic: int
    wire: bytes
    """Topic length (1 byte in V1, 2 in V2) and topic, as in the record."""
    overhead: int
    """A record's bytes without body and properties."""
    hash_byte: int
    """What makes the same key in two topics two hashes; see `hashes.key_hash`."""
    keys_all: bool
    keys_unique: bool

    def spread(self) -> int:
        """The queue for the next message that names none."""
        ...


class Draft(NamedTuple):
    """A message that lacks only its place: everything `encode` needs (documented for readers; the loop makes plain tuples)."""

    topic: TopicFacts
    queue: int
    size: int
    crc: int
    body: bytes
    properties: bytes
    tag_hash: int
    message_id: str
    flags: int
    system_flags: int
    born_at: int
    key_hashes: tuple[int, ...]


class Limits(NamedTuple):
    """What a message must keep to; sizes in bytes."""

    max_body: int
    max_record: int
    max_properties: int
    compress_above: int | None
    compression: str
    property_crc: bool


class UniqueIds:
    """Makes RocketMQ's 32-digit unique ids: address, pid, a token of this store's, time, counter.

    The only state in this module. 65,536 ids fit a millisecond; when they are used up the time in the
    id goes on by one, so that no id comes twice even with a stopped clock.
    """

    def __init__(self, address: bytes, pid: int, token: int) -> None:
        self._prefix = id_prefix(address, pid, token)
        self._lock = threading.Lock()
        self._counter = 0
        self._now = 0
        self._used = 0
        self._month_start = 0
        self._month_end = 0

    def take(self, now_ms: int, count: int) -> tuple[str, int]:
        """First 28 digits and first counter of `count` (65,536 at most) ids."""
        with self._lock:
            if now_ms > self._now:
                self._now, self._used = now_ms, 0
            elif self._used + count > 1 << 16:
                self._now, self._used = self._now + 1, 0
            self._used += count
            first = self._counter
            self._counter = (first + count) & 0xFFFF
            if not self._month_start <= self._now < self._month_end:
                self._month_start = month_start_ms(self._now)
                self._month_end = self._month_start + 28 * 86_400_000
            return f"{self._prefix}{(self._now - self._month_start) & 0xFFFFFFFF:08X}", first


def prepare(
    messages: Sequence[Message],
    topic_of: Callable[[str], TopicFacts],
    ids: UniqueIds,
    now_ms: int,
    limits: Limits,
) -> list[Draft]:
    """Check messages and make all of their records that doesn't depend on place.

    Raises `MessageIllegal` (or `MessageTooLarge`, `PropertiesTooLarge`), naming the message by its index, and
    whatever `topic_of` raises.
    """
    drafts: list[Draft] = []
    append = drafts.append
    max_body, max_record, max_properties, compress_above, codec, with_crc = limits
    known: dict[str, TopicFacts] = {}
    crc = crc32
    digest = xxh3_64_intdigest
    reserved = RESERVED
    stem, first = "", 0
    left = 0
    for index, m in enumerate(messages):
        try:
            name = m.topic
            topic = known.get(name)
            if topic is None:
                topic = known[name] = topic_of(name)
            body = m.body
            if type(body) is not bytes:
                body = _as_bytes(body)
            length = len(body)
            if length > max_body:
                raise MessageTooLarge(
                    f"the body has {length} bytes, the limit is {max_body}; raise StoreConfig.max_body or split it",
                    length,
                    max_body,
                )
            system_flags = 0
            if compress_above is not None and length > compress_above:
                packed = compress(body, codec)
                if len(packed) < length:
                    body, length, system_flags = packed, len(packed), codec_flags(codec)

            uid = m.message_id
            if uid is None:
                if not left:
                    left = min(len(messages) - index, 1 << 16)
                    stem, first = ids.take(now_ms, left)
                left -= 1
                uid = stem + _HEX4[first & 0xFFFF]
                first += 1
            elif type(uid) is not str or not uid or " " in uid:
                raise MessageIllegal(f"message_id is {uid!r}; it must be a text without blanks")
            text = _UNIQUE + uid + "\x02"
            count = 1
            keys = m.keys
            if keys:
                if type(keys) is str:
                    raise MessageIllegal(f"keys is the text {keys!r}; it must be a list of texts")
                for key in keys:
                    if type(key) is not str or not key or " " in key:
                        raise MessageIllegal(
                            f"key {key!r} must be a text of at least one character without blanks"
                        )
                text += _KEYS + (keys[0] if len(keys) == 1 else " ".join(keys)) + "\x02"
                count += 1
            tag = m.tag
            if tag is None:
                hashed = 0
            else:
                if type(tag) is not str or not tag:
                    raise MessageIllegal(
                        f"tag is {tag!r}; it must be a text of at least one character, or None"
                    )
                hashed = tag_hash(tag)
                text += _TAGS + tag + "\x02"
                count += 1
                if "||" in tag:
                    system_flags |= MULTI_TAG
            properties = m.properties
            if properties:
                for key, value in properties.items():
                    if type(key) is not str or type(value) is not str or not key or not value:
                        raise MessageIllegal(
                            f"property {key!r}: {value!r} must be two texts of at least one character"
                        )
                    if key in reserved:
                        raise _reserved(key)
                    if key.startswith(TRANSIENT_PREFIX):
                        continue
                    text += key + "\x01" + value + "\x02"
                    count += 1
            group = m.message_group
            if group is not None:
                if type(group) is not str or not group:
                    raise MessageIllegal(
                        f"message_group is {group!r}; it must be a text of at least one character"
                    )
                text += f"{MESSAGE_GROUP}\x01{group}\x02"
                count += 1
            try:
                raw = text.encode()
            except UnicodeEncodeError as e:
                raise MessageIllegal(
                    f"tag, keys and properties must be encodable as UTF-8: {e}"
                ) from e
            if raw.count(b"\x01") != count or raw.count(b"\x02") != count:
                raise MessageIllegal(
                    "tag, keys and properties must not contain the characters U+0001 and U+0002"
                )

            queue = m.queue
            if queue is None:
                if group is None:
                    queue = topic.spread()
                else:
                    queue = digest(group.encode()) % topic.write_queues
            elif type(queue) is not int or not 0 <= queue < topic.write_queues:
                raise MessageIllegal(
                    f"queue is {queue!r}; topic {name!r} takes messages in queues 0 to {topic.write_queues - 1}"
                )
            flags = m.flags
            born_at = m.born_at
            if born_at is None:
                born_at = now_ms
            if flags or born_at is not now_ms:
                _check_numbers(flags, born_at)

            size = topic.overhead + length + len(raw)
            if with_crc:
                size += 20
            if len(raw) + (20 if with_crc else 0) > max_properties:
                raise PropertiesTooLarge(
                    f"the properties take {len(raw)} bytes, the limit is {max_properties}",
                    len(raw),
                    max_properties,
                )
            if size > max_record:
                raise MessageTooLarge(
                    f"the record has {size} bytes, the limit is {max_record}; segments must be larger",
                    size,
                    max_record,
                )
            if topic.keys_unique:
                low = topic.hash_byte
                hashes: tuple[int, ...] = (digest(uid.encode()) >> 32 << 8 | low,)
                if keys and topic.keys_all:
                    if len(keys) == 1:
                        hashes = (hashes[0], digest(keys[0].encode()) >> 32 << 8 | low)
                    else:
                        hashes += tuple(
                            [digest(key.encode()) >> 32 << 8 | low for key in set(keys)]
                        )
            else:
                hashes = ()
            append(
                (
                    topic, queue, size, crc(body) & 0x7FFFFFFF, body, raw, hashed, uid,
                    flags, system_flags, born_at, hashes,
                )  # type: ignore[arg-type]  # a plain tuple of Draft's shape: NamedTuple.__new__ costs 250 ns more
            )  # fmt: skip
        except MessageIllegal as e:
            e.args = (f"message {index} of {len(messages)}: {e.args[0]}",)
            raise
        except (AttributeError, TypeError) as e:
            raise MessageIllegal(
                f"message {index} of {len(messages)} is not a Message or has a field of the wrong type: {e}"
            ) from e
    return drafts


class Host:
    """The host fields of records written here, packed once."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self.v6 = len(packed) == 20
        self.system_flags = 0x30 if self.v6 else 0
        self.header = (_HEADER_V6 if self.v6 else _HEADER_V4).pack
        self.behind = packed + bytes(12)  # store host, reconsume times 0, prepared position 0
        self.extra = 24 if self.v6 else 0


class QueueTail:
    """One queue's entries in the index tail: `positions[i]` is where offset `first + i` stands."""

    __slots__ = ("first", "next", "positions")

    def __init__(self, first: int) -> None:
        self.first = first
        self.next = first
        self.positions: list[int] = []


def encode(
    drafts: Sequence[Draft],
    position: int,
    stored_at: int,
    host: Host,
    queue_tail: Callable[[int], QueueTail],
    queues: dict[int, QueueTail],
    offsets: list[int],
    suffix: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Give each draft its offset, and make the records that stand at `position` and behind.

    Adds each record's position to its queue's tail and its offset to `offsets`. `suffix` makes the property CRC
    of a record without it. The caller holds the log's lock and makes sure that the records fit the segment.
    """
    parts: list[bytes] = []
    find = queues.get
    pack = host.header
    packed = host.packed
    behind = host.behind
    host_flags = host.system_flags
    lengths = _LENGTHS
    note = offsets.append
    ending = 20 if suffix else 0
    for topic, queue, size, crc, body, raw, _, _, flags, system_flags, born_at, _ in drafts:
        key = topic.base + queue
        tail = find(key)
        if tail is None:
            tail = queue_tail(key)
        offset = tail.next
        tail.next = offset + 1
        tail.positions.append(position)
        note(offset)
        parts += (
            pack(
                size, topic.magic, crc, queue, flags, offset, position, system_flags | host_flags, born_at,
                packed, stored_at, behind, len(body),
            ),
            body,
            topic.wire,
            lengths[len(raw) + ending],
            raw,
        )  # fmt: skip
        if suffix:
            parts.append(suffix(b"".join(parts[-5:])))
        position += size
    return b"".join(parts)


def positions_of(sizes: Sequence[int], position: int) -> list[int]:
    """Where records of these sizes stand when the first is at `position`."""
    found = list(accumulate(sizes, initial=position))
    found.pop()
    return found


def _as_bytes(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    if isinstance(body, str):
        raise MessageIllegal("the body is text; encode it first, such as with .encode()")
    try:
        return bytes(memoryview(body))  # type: ignore[arg-type]  # any other buffer; the error below says if not
    except TypeError:
        raise MessageIllegal(
            f"the body is a {type(body).__name__}; it must be bytes-like"
        ) from None


def _check_numbers(flags: object, born_at: object) -> None:
    if type(flags) is not int or not 0 <= flags < 1 << 32:
        raise MessageIllegal(
            f"flags is {flags!r}; it must be a whole number of 32 bits, 0 to {(1 << 32) - 1}"
        )
    if type(born_at) is not int or not 0 <= born_at < 1 << 63:
        raise MessageIllegal(f"born_at is {born_at!r}; it must be milliseconds since the epoch")


def _reserved(name: str) -> MessageIllegal:
    instead = {
        TAGS: "use tag=",
        KEYS: "use keys=",
        UNIQUE_ID: "use message_id=",
        MESSAGE_GROUP: "use message_group=",
        PROPERTY_CRC: "the store writes it itself",
    }.get(name, "the name is the system's own")
    return MessageIllegal(f"property {name!r} is reserved; {instead}")
