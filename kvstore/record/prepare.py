"""Prepare: a batch of messages, checked and turned into all of their records that doesn't depend on place.

The idea: a batch is columns. Each check and each conversion is one call over a column (`map`, `set(map(type, ...))`, one search in
the joined text), so that an ordinary message costs a few C calls and hardly any bytecode: 1.2 us against the 2.9 us of a loop that
looks at one message after the other. Only when a column says that something is wrong is each message looked at by itself, to say
which and why.

Invariant: what `prepare` returns can be written as it is; it raises before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import add, itemgetter, methodcaller
from threading import Lock
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from msgspec import Struct
from msgspec.structs import astuple
from xxhash import xxh32_intdigest
from zlib_ng.zlib_ng import crc32

from kvstore.errors import MessageIllegal, MessageTooLarge, PropertiesTooLarge, StoreError
from kvstore.record.compression import codec_flags, compress
from kvstore.record.hashes import java_hash
from kvstore.record.layout import CRC_MASK
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
from kvstore.record.uniqueids import UniqueIds
from kvstore.record.values import Message

_CACHED_MAX: Final = 4096
_LANES_MAX: Final = 1 << 18
_UNIQUE: Final = UNIQUE_ID + "\x01"
_KEYS: Final = KEYS + "\x01"
_items_of: Final = methodcaller("items")
_BYTES: Final = {bytes}
_INT: Final = {int}
_ONE: Final = {1}
_NONE: Final = {0}
_LISTS: Final = {list, tuple}
_FORBIDDEN: Final = "U+0001 and U+0002"
PROPERTY_CRC_BYTES: Final = 20


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

    def spread(self, count: int) -> int:
        """The first of `count` turns for messages that name no queue; a turn's queue is turn %
        write_queues.
        """
        ...


class Lane(NamedTuple):
    """What putting into one queue needs: the topic's facts, worked out for the queue."""

    key: int
    """Topic id << 32 | queue."""
    overhead: int
    magic: int
    wire: bytes
    keyed: int
    """What the key index takes of its messages: 0 nothing, 1 the unique id, 2 all keys as well."""


class Lanes(dict[tuple[str, int], Lane]):
    """(topic, queue) -> lane; made when first asked for.

    One look-up a message takes the place of the topic's, the queue's range check and four
    attributes: 130 ns instead of 250.
    """

    def __init__(
        self, topic_of: Callable[[str], TopicFacts], note: Callable[[int, int], None]
    ) -> None:
        """`note` is told each used topic's id and hash byte."""
        super().__init__()
        self.topic_of = topic_of
        self._note = note
        self._lock = Lock()
        self._version = 0

    def __missing__(self, at: tuple[str, int]) -> Lane:
        name, queue = at
        version = self._version
        topic = self.topic_of(name)
        if not 0 <= queue < topic.write_queues:
            raise _Wrong
        self._note(topic.base >> 32, topic.hash_byte)
        keyed = 0 if not topic.keys_unique else 2 if topic.keys_all else 1
        lane = Lane(topic.base + queue, topic.overhead, topic.magic, topic.wire, keyed)
        with self._lock:
            # What was read while a topic changed is used once and not kept.
            if version == self._version:
                if len(self) >= _LANES_MAX:
                    super().clear()
                self[at] = lane
        return lane

    def clear(self) -> None:
        """Take note that a topic changed."""
        with self._lock:
            self._version += 1
            super().clear()


class Limits(NamedTuple):
    """What a message must keep to; sizes in bytes."""

    max_body: int
    max_record: int
    max_properties: int
    compress_above: int | None
    compression: str
    property_crc: bool


class Prepared(NamedTuple):
    """A batch as columns, one value a message, but for the last two, which have one a key."""

    names: Sequence[str]
    """The topics' names."""
    queue_keys: list[int]
    """Topic id << 32 | queue."""
    magics: Sequence[int]
    wires: Sequence[bytes]
    queues: Sequence[int]
    sizes: list[int]
    crcs: list[int]
    bodies: Sequence[bytes]
    body_sizes: list[int]
    properties: list[bytes]
    properties_sizes: list[int]
    """What the records say; with the property CRC that is still to come."""
    message_ids: Sequence[str]
    flags: Sequence[int]
    system_flags: list[int]
    born_at: Sequence[int | None] | None
    """None: all were born when they are stored."""
    tag_hashes: list[int]
    plain: bool
    """No message has flags, and all have the same system flags."""
    key_digests: list[int]
    key_owners: list[int] | None
    """Which message a key is of; None: every message has the same number of keys, `key_digests`
    goes round over them."""


class _Tag(NamedTuple):
    text: str
    hash: int
    system_flags: int


_tags: dict[str | None, _Tag] = {}
_names: set[str] = set()
"""Names and tags that were checked before."""


def prepare(
    messages: Sequence[Message], lanes: Lanes, ids: UniqueIds, now_ms: int, limits: Limits
) -> Prepared:
    """Check messages and make all of their records that doesn't depend on place.

    Raises `MessageIllegal` (or `MessageTooLarge`, `PropertiesTooLarge`), naming the message by its
    index, and whatever `lanes.topic_of` raises.
    """
    if not messages:
        return Prepared(
            [], [], [], [], [], [], [], [], [], [], [], [], [], [], None, [], True, [], None
        )
    try:
        return _prepare(messages, lanes, ids, now_ms, limits)
    except _Wrong as e:
        _explain(messages, e, limits)
    except (AttributeError, TypeError, UnicodeEncodeError) as e:
        _explain(messages, e, limits)


class One(Struct, gc=False):
    """A single message, prepared."""

    lane: Lane
    message_id: str
    body: bytes
    properties: bytes
    size: int
    system_flags: int
    tag_hash: int
    key_digests: list[int]


def prepare_one(  # noqa: C901 -- each branch is a look that an ordinary message pays for
    m: Message, lanes: Lanes, ids: UniqueIds, now_ms: int, limits: Limits
) -> One | None:
    """An ordinary message as a batch of one; None if it must be looked at as a batch.

    Columns of one cost 20 us; this costs 3.
    """
    body, tag, keys, properties = m.body, m.tag, m.keys, m.properties
    queue, above = m.queue, limits.compress_above
    if (
        type(body) is not bytes
        or type(queue) is not int
        or type(keys) not in _LISTS
        or type(properties) is not dict
        or m.message_group is not None
        or m.message_id is not None
        or m.born_at is not None
        or m.flags
        or limits.property_crc
        or len(body) > (limits.max_body if above is None else above)
    ):
        return None
    try:
        lane = lanes[m.topic, queue]
        text, hashed, system_flags = _tags.get(tag) or _tag(tag)
        if keys:
            joined = " ".join(keys)
            if joined.count(" ") != len(keys) - 1 or not all(keys):
                return None
            text = f"{_KEYS}{joined}\x02{text}"
        pairs = 1 + bool(keys) + (tag is not None) + len(properties)
        for name, value in properties.items():
            if name not in _names or type(value) is not str or not value:
                return None
            text += f"{name}\x01{value}\x02"
        message_id = ids.one(now_ms)
        raw = f"{_UNIQUE}{message_id}\x02{text}".encode()
        if raw.count(b"\x01") != pairs or raw.count(b"\x02") != pairs:
            return None
        digests = []
        if lane.keyed:
            digests = [xxh32_intdigest(message_id.encode())]
            if lane.keyed == 2:
                digests += [xxh32_intdigest(k.encode()) for k in keys]
    except (_Wrong, TypeError, UnicodeEncodeError):
        return None
    size = lane.overhead + len(body) + len(raw)
    if size > limits.max_record or len(raw) > limits.max_properties:
        return None
    return One(lane, message_id, body, raw, size, system_flags, hashed, digests)


class _Wrong(Exception):
    """A column is not as it must be; which message is at fault is still to be found."""


def _prepare(
    messages: Sequence[Message], lanes: Lanes, ids: UniqueIds, now_ms: int, limits: Limits
) -> Prepared:
    count = len(messages)
    # One call a message, and one for all, instead of ten attributes a message.
    bodies: Sequence[Any]
    queues: Sequence[Any]
    names, bodies, queues, tags, keys, properties, groups, flags, given, born = zip(
        *map(astuple, messages), strict=True
    )
    grouped = groups.count(None) != count
    if set(map(type, queues)) != _INT:
        queues = _queues(queues, groups, names, lanes.topic_of)
    try:
        queue_keys, overheads, magics, wires, keyed = zip(
            *map(lanes.__getitem__, zip(names, queues, strict=True)), strict=True
        )
    except _Wrong:
        _queues(queues, groups, names, lanes.topic_of)  # a topic that is not there is said first
        raise
    bodies, body_sizes, system_flags = _bodies(bodies, limits)
    message_ids = _ids(given, ids, now_ms)

    # The texts are joined from columns too: what all messages have stands in it as the constants
    # around it.
    columns: list[Iterable[str]] = [repeat(_UNIQUE), message_ids]
    tokens, key_lists = _key_columns(keys, columns)
    tag_hashes, between = _tag_columns(tags, columns, system_flags)
    between = _property_columns(properties, columns, between)
    columns.append(repeat(between))
    if grouped:
        _group_columns(groups, columns)
    raws = list(map(str.encode, map("".join, zip(*columns, strict=False))))
    lengths = list(map(len, raws))
    sizes = list(map(add, map(add, overheads, body_sizes), lengths))
    if limits.property_crc:
        sizes = [size + PROPERTY_CRC_BYTES for size in sizes]
        lengths = [length + PROPERTY_CRC_BYTES for length in lengths]
    largest = max(sizes)
    if largest > limits.max_record or (
        largest > limits.max_properties and max(lengths) > limits.max_properties
    ):
        raise _Wrong
    plain = not any(flags)
    if not plain and not (
        set(map(type, flags)) == _INT and min(flags) >= 0 and max(flags) < 1 << 32
    ):
        raise _Wrong
    digests, owners = _hash_columns(keyed, message_ids, key_lists, tokens)
    return Prepared(
        names, list(queue_keys), magics, wires, queues, sizes,
        [crc32(b) & CRC_MASK for b in bodies], bodies, body_sizes, raws, lengths, message_ids,
        flags, system_flags, None if born.count(None) == count else born, tag_hashes,
        plain and system_flags.count(system_flags[0]) == count, digests, owners,
    )  # fmt: skip


def _bodies(bodies: Sequence[Any], limits: Limits) -> tuple[Sequence[bytes], list[int], list[int]]:
    """The bodies as stored, their sizes, and what of the system flags follows from them."""
    if set(map(type, bodies)) != _BYTES:
        bodies = [_as_bytes(b) for b in bodies]
    sizes = list(map(len, bodies))
    largest = max(sizes)
    if largest > limits.max_body:
        raise _Wrong
    system_flags = [0] * len(bodies)
    above = limits.compress_above
    if above is not None and largest > above:
        bodies = list(bodies)
        for i, body in enumerate(bodies):
            if len(body) > above:
                packed = compress(body, limits.compression)
                if len(packed) < len(body):
                    bodies[i], sizes[i], system_flags[i] = (
                        packed,
                        len(packed),
                        codec_flags(limits.compression),
                    )
    return bodies, sizes, system_flags


def _ids(given: Sequence[str | None], ids: UniqueIds, now_ms: int) -> list[str]:
    missing = given.count(None)
    made = ids.take(now_ms, missing) if missing else []
    if missing == len(given):
        return made
    turn = iter(made)
    found = [next(turn) if i is None else i for i in given]
    if not all(found) or _separated("".join(found), blanks=False):
        raise _Wrong
    return found


def _separated(joined: str, *, blanks: bool) -> bool:
    """Whether there is a character that may not be in a text, or a blank where none may be."""
    return "\x01" in joined or "\x02" in joined or (not blanks and " " in joined)


def _key_columns(
    keys: Sequence[Any], columns: list[Iterable[str]]
) -> tuple[list[str], Sequence[Any]]:
    """All keys one behind the other, and each message's own."""
    if not set(map(type, keys)) <= _LISTS:
        if any(isinstance(k, str) for k in keys):
            raise _Wrong
        keys = [tuple(k) for k in keys]
    counts = set(map(len, keys))
    if counts == _ONE:
        tokens = [k for (k,) in keys]
        columns += [repeat("\x02" + _KEYS), tokens]
    elif counts == _NONE:
        return [], keys
    else:
        tokens = list(chain.from_iterable(keys))
        texts = list(map(" ".join, keys))
        if 0 in counts:
            columns.append([f"\x02{_KEYS}{t}" if t else t for t in texts])
        else:
            columns += [repeat("\x02" + _KEYS), texts]
    # Joining is also what finds a key that is no text.
    if _separated("".join(tokens), blanks=False) or not all(tokens):
        raise _Wrong
    return tokens, keys


def _tag_columns(
    tags: Sequence[str | None], columns: list[Iterable[str]], system_flags: list[int]
) -> tuple[list[int], str]:
    """The tags' hashes, and the text that the next column begins with."""
    different = set(tags)
    if len(different) == 1:
        tag = tags[0]
        text, hashed, bits = _tags.get(tag) or _tag(tag)
        if bits:
            system_flags[:] = [f | bits for f in system_flags]
        return [hashed] * len(tags), "\x02" + text
    facts = {tag: _tags.get(tag) or _tag(tag) for tag in different}
    found = [facts[tag] for tag in tags]
    columns += [repeat("\x02"), [t.text for t in found]]
    if any(t.system_flags for t in facts.values()):
        system_flags[:] = [f | t.system_flags for f, t in zip(system_flags, found, strict=True)]
    return [t.hash for t in found], ""


def _tag(tag: str | None) -> _Tag:
    if tag is None:
        return _Tag("", 0, 0)
    if type(tag) is not str or not tag or _separated(tag, blanks=True):
        raise _Wrong
    if len(_tags) >= _CACHED_MAX:
        _tags.clear()
    found = _tags[tag] = _Tag(
        f"{TAGS}\x01{tag}\x02", java_hash(tag), MULTI_TAG if "||" in tag else 0
    )
    return found


def _property_columns(
    properties: Sequence[Mapping[str, str]], columns: list[Iterable[str]], between: str
) -> str:
    """The columns of the messages' own properties; the text that the next column begins with."""
    names: set[str] = set().union(*properties)
    if not names <= _names and not _learn(names):
        return _property_columns([_lasting(p) for p in properties], columns, between)
    if not names:
        return between
    counts = set(map(len, properties))
    if len(counts) == 1 and len(names) in counts:
        # All have the same properties: a column each, between names that are constants.
        for name in next(iter(properties)):
            values = list(map(itemgetter(name), properties))
            # Joining is also what finds a value that is no text.
            if _separated("".join(values), blanks=True) or "" in values:
                raise _Wrong
            columns += [repeat(f"{between}{name}\x01"), values]
            between = "\x02"
        return between
    columns.append(repeat(between))
    texts = list(map("\x01".join, chain.from_iterable(map(_items_of, properties))))
    joined = "\x02".join([*texts, ""])
    if (
        joined.count("\x01") != len(texts)
        or joined.count("\x02") != len(texts)
        or "\x01\x02" in joined
    ):
        raise _Wrong
    turn = iter(texts)
    columns.append(["".join([next(turn) + "\x02" for _ in range(len(p))]) for p in properties])
    return ""


def _learn(names: set[str]) -> bool:
    """Check names that are new; False if there is a transient one, which is never stored."""
    for name in names - _names:
        if type(name) is not str or not name or name in RESERVED or _separated(name, blanks=True):
            raise _Wrong
        if name.startswith(TRANSIENT_PREFIX):
            return False
        if len(_names) >= _CACHED_MAX:
            _names.clear()
        _names.add(name)
    return True


def _group_columns(groups: Sequence[str | None], columns: list[Iterable[str]]) -> None:
    if not set(map(type, groups)) <= {str, type(None)} or "" in groups:
        raise _Wrong
    if _separated("".join([g for g in groups if g is not None]), blanks=True):
        raise _Wrong
    columns.append(["" if g is None else f"{MESSAGE_GROUP}\x01{g}\x02" for g in groups])


def _lasting(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties without the transient ones, which are never stored."""
    return {
        k: v
        for k, v in properties.items()
        if type(k) is not str or not k.startswith(TRANSIENT_PREFIX)
    }


def _queues(
    queues: Sequence[int | None],
    groups: Sequence[str | None],
    names: Sequence[str],
    topic_of: Callable[[str], TopicFacts],
) -> list[int]:
    """The messages' queues, those that the store draws included."""
    known = {name: topic_of(name) for name in dict.fromkeys(names)}
    missing = queues.count(None)
    turns = {name: t.spread(missing) for name, t in known.items()} if missing else {}
    found: list[int] = []
    for name, queue, group in zip(names, queues, groups, strict=True):
        topic = known[name]
        if queue is None:
            if group is None:
                turn = turns[name]
                turns[name] = turn + 1
            else:
                turn = xxh32_intdigest(group.encode())
            found.append(turn % topic.write_queues)
        elif type(queue) is int and 0 <= queue < topic.write_queues:
            found.append(queue)
        else:
            raise _Wrong
    return found


def _hash_columns(
    keyed: Sequence[int], message_ids: list[str], keys: Sequence[Any], tokens: list[str]
) -> tuple[list[int], list[int] | None]:
    """Digests of ids and keys, and whose they are."""
    count = len(keyed)
    if keyed.count(2) == count:
        digests = list(map(xxh32_intdigest, map(str.encode, message_ids + tokens)))
        if len(tokens) in (0, count) and len(set(map(len, keys))) == 1:
            return digests, None
        owners = list(range(count))
        owners += chain.from_iterable(map(repeat, range(count), map(len, keys)))
        return digests, owners
    digests, owners = [], []
    for i, (wanted, message_id, mine) in enumerate(zip(keyed, message_ids, keys, strict=True)):
        if wanted:
            found = [message_id, *mine] if wanted == 2 else [message_id]
            digests += [xxh32_intdigest(k.encode()) for k in found]
            owners += [i] * len(found)
    return digests, owners


def _as_bytes(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    if isinstance(body, str):
        raise _Wrong
    return bytes(memoryview(body))  # type: ignore[arg-type]  # any other buffer; TypeError if it is none


# --- what was wrong ---


def _explain(messages: Sequence[Message], why: Exception, limits: Limits) -> NoReturn:
    """Raise what is wrong with the first message at fault."""
    for index, m in enumerate(messages):
        try:
            _look(m, limits)
        except StoreError as e:
            e.args = (f"message {index} of {len(messages)}: {e.args[0]}",)
            raise
    raise MessageIllegal(f"the messages can't be put: {str(why) or type(why).__name__}") from why


def _look(m: Any, limits: Limits) -> None:
    if not isinstance(m, Message):
        raise MessageIllegal(f"it is a {type(m).__name__}; put_batch takes a list of Message")
    _look_body(m.body, limits)
    _text("message_id", m.message_id, blanks=False, optional=True)
    _text("tag", m.tag, blanks=True, optional=True)
    _text("message_group", m.message_group, blanks=True, optional=True)
    if isinstance(m.keys, str):
        raise MessageIllegal(f"keys is the text {m.keys!r}; it must be a list of texts")
    try:
        keys, properties = list(m.keys), dict(m.properties)
    except (TypeError, ValueError) as e:
        raise MessageIllegal(
            f"keys must be a list of texts, properties a mapping of texts: {e}"
        ) from e
    for key in keys:
        _text("a key", key, blanks=False)
    for name, value in properties.items():
        if type(name) is not str or type(value) is not str or not name or not value:
            raise MessageIllegal(
                f"property {name!r}: {value!r} must be two texts of at least one character"
            )
        if name in RESERVED:
            raise _reserved(name)
        _text("a property's name", name, blanks=True)
        _text(f"property {name!r}", value, blanks=True)
    _look_numbers(m)
    _look_size(m, keys, properties, limits)


def _look_body(body: object, limits: Limits) -> None:
    if isinstance(body, str):
        raise MessageIllegal("the body is text; encode it first, such as with .encode()")
    try:
        size = memoryview(body).nbytes  # type: ignore[arg-type]  # TypeError if it is no buffer
    except TypeError:
        raise MessageIllegal(
            f"the body is a {type(body).__name__}; it must be bytes-like"
        ) from None
    if size > limits.max_body:
        raise MessageTooLarge(
            f"the body has {size} bytes, the limit is {limits.max_body}; raise StoreConfig.max_body or split it",
            size,
            limits.max_body,
        )


def _text(what: str, text: object, *, blanks: bool, optional: bool = False) -> None:
    if text is None and optional:
        return
    if type(text) is not str or not text:
        raise MessageIllegal(f"{what} is {text!r}; it must be a text of at least one character")
    if "\x01" in text or "\x02" in text:
        raise MessageIllegal(f"{what} is {text!r}; it must not contain {_FORBIDDEN}")
    if not blanks and " " in text:
        raise MessageIllegal(f"{what} is {text!r}; it must not contain blanks")
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise MessageIllegal(f"{what} is {text!r}; it can't be encoded as UTF-8: {e}") from e


def _look_numbers(m: Message) -> None:
    if type(m.flags) is not int or not 0 <= m.flags < 1 << 32:
        raise MessageIllegal(
            f"flags is {m.flags!r}; it must be a whole number of 32 bits, 0 to {(1 << 32) - 1}"
        )
    if m.born_at is not None and (type(m.born_at) is not int or not 0 <= m.born_at < 1 << 63):
        raise MessageIllegal(f"born_at is {m.born_at!r}; it must be milliseconds since the epoch")
    if m.queue is not None and (type(m.queue) is not int or m.queue < 0):
        raise MessageIllegal(
            f"queue is {m.queue!r}; it must be a queue of topic {m.topic!r}, 0 and up"
        )


def _look_size(m: Message, keys: list[str], properties: Mapping[str, str], limits: Limits) -> None:
    parts = [(UNIQUE_ID, m.message_id or "0" * 32), *_lasting(properties).items()]
    parts += [(KEYS, " ".join(keys))] if keys else []
    parts += [(TAGS, m.tag)] if m.tag else []
    parts += [(MESSAGE_GROUP, m.message_group)] if m.message_group else []
    size = sum(len(f"{name}\x01{value}\x02".encode()) for name, value in parts)
    if limits.property_crc:
        size += PROPERTY_CRC_BYTES
    if size > limits.max_properties:
        raise PropertiesTooLarge(
            f"the properties take {size} bytes, the limit is {limits.max_properties}",
            size,
            limits.max_properties,
        )
    whole = size + memoryview(m.body).nbytes + len(m.topic.encode())
    if whole > limits.max_record - 200:
        raise MessageTooLarge(
            f"the record takes about {whole + 100} bytes, the limit is {limits.max_record}: a segment must hold it; "
            "compress the body, or make the store with a larger segment_size",
            whole,
            limits.max_record,
        )


def _reserved(name: str) -> MessageIllegal:
    instead = {
        TAGS: "use tag=",
        KEYS: "use keys=",
        UNIQUE_ID: "use message_id=",
        MESSAGE_GROUP: "use message_group=",
        PROPERTY_CRC: "the store writes it itself",
    }.get(name, "the name is the system's own")
    return MessageIllegal(f"property {name!r} is reserved; {instead}")
