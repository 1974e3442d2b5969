"""Prepare: messages, checked and turned into the parts of their records that don't depend on their
place in the log.

The idea: a batch is columns. Each check and each conversion is one call over a column (`map`,
`set(map(type, ...))`, one search in the joined text), so that an ordinary message costs a few C
calls and hardly any bytecode: 1.4 us in a batch of 32. Only when a column has a fault is each
message looked at by itself, to name the message and the fault (`explain`). Tags and property names
are few and come again with every message, so a look-up of their encoded texts and hashes replaces
the check and the work.

Columns of one message cost 17 us, straight-line code 3 us, so `prepare_one` handles an ordinary
message that is put alone. Everything that is not ordinary (flags, a message group, an id or a time
given, a body to compress, any fault) is left to `prepare`, which gives the same errors as for a
batch.

Invariants: the result can be written as it is; `prepare` raises before anything is changed;
`prepare_one` makes the record of `prepare`, byte for byte; a refused tag or name is not cached.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import add, and_, attrgetter, itemgetter, methodcaller, or_
from typing import Any, Final

from msgspec.structs import astuple
from zlib_ng.zlib_ng import crc32

from kvstore.core.hashing import SEPARATOR
from kvstore.record.compression import codec_flags, compress
from kvstore.record.hashes import java_hash
from kvstore.record.ids import UniqueIds
from kvstore.record.layout import CRC_MASK, FIXED_V1
from kvstore.record.names import (
    KEYS,
    MESSAGE_GROUP,
    MULTI_TAG,
    RESERVED,
    TAGS,
    TRANSIENT_PREFIX,
    UNIQUE_ID,
)
from kvstore.record.put.batch import Prepared, PreparedMessage
from kvstore.record.put.explain import (
    FLAGS_END,
    PROPERTY_CRC_BYTES,
    TIMES_END,
    ColumnFault,
    Limits,
    explain,
    without_transient,
)
from kvstore.record.put.put_routes import BodyCompression, PutRoutes
from kvstore.record.values import Message

_OVERHEAD_MAX: Final = 1024
"""More than any record takes without body and properties."""
_UNIQUE: Final = UNIQUE_ID + "\x01"
_KEYS: Final = KEYS + "\x01"
_KEYS_NEXT: Final = "\x02" + _KEYS
_GROUP: Final = MESSAGE_GROUP + "\x01"
_items_of: Final = methodcaller("items")
_fields_of: Final = attrgetter(*Message.__struct_fields__)
_BYTES: Final = {bytes}
_INT: Final = {int}
_ONE: Final = {1}
_NONE: Final = {0}
_LISTS: Final = {list, tuple}
_INTERNED_MAX: Final = 4096
_TAGS: Final = TAGS + "\x01"


# --- tags and names that were checked before ---


class _TagTexts(dict[str | None, str]):
    """Tag -> its text among the properties, "" for no tag; raises `ColumnFault` for a value that
    can't be a tag.
    """

    def __missing__(self, tag: str | None) -> str:
        if tag is None:
            found = ""
        elif not isinstance(tag, str) or not tag or has_separator(tag):
            raise ColumnFault("tags")
        else:
            found = "".join((_TAGS, tag, "\x02"))
        if len(self) >= _INTERNED_MAX:
            self.clear()
        # For an enum this takes its value, not its name.
        self[tag if tag is None else str.__str__(tag)] = found
        return found


class _TagHashes(dict[str | None, int]):
    """Tag, checked -> its hash."""

    def __missing__(self, tag: str | None) -> int:
        found = java_hash(tag) if tag else 0
        if len(self) >= _INTERNED_MAX:
            self.clear()
        self[tag if tag is None else str.__str__(tag)] = found
        return found


# Two look-ups a message in plain columns cost 45 ns, one look-up whose result is taken apart 110
# ns.
tag_texts: Final = _TagTexts()
tag_hashes: Final = _TagHashes()
checked_names: Final[set[str]] = set()


def flags_of(tag_text: str) -> int:
    """The system flags that follow from a tag's text."""
    return MULTI_TAG if "||" in tag_text else 0


def has_separator(joined: str) -> bool:
    """Whether a text has a forbidden character: a separator of properties, or the zero, which
    recovery takes for the trace of a torn write.
    """
    return "\x01" in joined or "\x02" in joined or "\0" in joined


def check_names(names: Iterable[str]) -> bool:
    """Check names that are new; False if there is a transient one, which is never stored."""
    for name in set(names) - checked_names:
        if not isinstance(name, str) or not name or name in RESERVED or has_separator(name):
            raise ColumnFault("properties")
        if name.startswith(TRANSIENT_PREFIX):
            return False
        if len(checked_names) >= _INTERNED_MAX:
            checked_names.clear()
        checked_names.add(str.__str__(name))
    return True


# --- a batch ---


def prepare(
    messages: Sequence[Message], routes: PutRoutes, ids: UniqueIds, now_ms: int, limits: Limits
) -> Prepared:
    """Check one or more messages, and make the parts of their records that don't depend on their
    place.

    Raises `MessageIllegal` (or `MessageTooLarge`, `PropertiesTooLarge`) and the errors of
    `routes.facts_of`, naming the message by its index.
    """
    try:
        return _prepare(messages, routes, ids, now_ms, limits)
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        error, cause = explain(messages, e, limits, routes.facts_of)
        raise error from cause


def _prepare(
    messages: Sequence[Message], routes: PutRoutes, ids: UniqueIds, now_ms: int, limits: Limits
) -> Prepared:
    # One call a message, and one for all, instead of reading ten attributes a message.
    fields: Callable[[Message], tuple[Any, ...]] = astuple
    if list(map(type, messages)).count(Message) != len(messages):
        if not all(isinstance(m, Message) for m in messages):
            raise ColumnFault("not all are messages")
        fields = _fields_of
    bodies: Sequence[Any]
    queues: Sequence[Any]
    names, bodies, queues, tags, keys, properties, groups, flags, given, born = zip(
        *map(fields, messages), strict=True
    )
    count = len(names)
    flagged, born_at = _number_columns(flags, born)
    bodies, body_sizes, system_flags = _bodies(names, bodies, routes, limits)
    message_ids = ids.fill(given, now_ms)
    if given.count(None) != count:
        _check_tokens(message_ids)

    row: list[Any] = [_UNIQUE, message_ids, "\x02"]
    tokens, key_lists = _key_columns(keys, row)
    hashes = _tag_columns(tags, row, system_flags)
    _property_columns(properties, row)
    if groups.count(None) != count:
        _group_columns(groups, row)
    raws = _joined(row, count)
    lengths = list(map(len, raws))
    if limits.property_crc:
        lengths = [length + PROPERTY_CRC_BYTES for length in lengths]
    sizes = list(map(add, body_sizes, lengths))
    largest = max(sizes)
    if largest > limits.max_record - FIXED_V1 or (
        largest > limits.max_properties and max(lengths) > limits.max_properties
    ):
        raise ColumnFault("sizes")

    # Topics come last, because asking for one may make it: a refused batch makes none.
    queues, found = routes.find(names, queues, groups, sizes, limits.max_record)
    queue_keys, overheads, magics, wires, key_levels = zip(*found, strict=True)
    sizes = list(map(add, sizes, overheads))
    if largest > limits.max_record - _OVERHEAD_MAX and max(sizes) > limits.max_record:
        raise ColumnFault("sizes")
    key_text, key_counts = _indexed(key_levels, message_ids, key_lists, tokens)
    return Prepared(
        names, list(queue_keys), magics, wires, queues, sizes,
        list(map(and_, map(crc32, bodies), repeat(CRC_MASK))), bodies, body_sizes, raws, lengths,
        message_ids,
        flags, system_flags, born_at, hashes,
        not flagged and system_flags.count(system_flags[0]) == count, key_text, key_counts,
    )  # fmt: skip


def _joined(row: list[Any], count: int) -> list[bytes]:
    """The records' properties: each is the constant texts of `row`, with the message's own values
    from its columns.

    The whole batch is joined and encoded at once, then cut at zeros, which no text may contain: 190
    ns a message instead of 210 ns.
    """
    pieces: list[Any] = []
    for piece in (*row, "\0"):
        if type(piece) is str and pieces and type(pieces[-1]) is str:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    width, parts = len(pieces), pieces * count
    for at, piece in enumerate(pieces):
        if type(piece) is not str:
            parts[at::width] = piece
    return "".join(parts).encode().split(b"\0")[:-1]


def _number_columns(
    flags: Sequence[int], born: Sequence[int | None]
) -> tuple[bool, Sequence[int | None] | None]:
    """Whether there are flags; and the born times, None if all are born when they are stored."""
    flagged = any(flags)
    if set(map(type, flags)) != _INT or (flagged and (min(flags) < 0 or max(flags) >= FLAGS_END)):
        raise ColumnFault("flags")
    if born.count(None) == len(born):
        return flagged, None
    times = [b for b in born if b is not None]
    if set(map(type, times)) != _INT or min(times) < 0 or max(times) >= TIMES_END:
        raise ColumnFault("born_at")
    return flagged, born


def _bodies(
    names: Sequence[str], bodies: Sequence[Any], routes: PutRoutes, limits: Limits
) -> tuple[Sequence[bytes], list[int], list[int]]:
    """The bodies as stored, their sizes, and the system flags that follow from them."""
    if set(map(type, bodies)) != _BYTES:
        bodies = [_as_bytes(b) for b in bodies]
    sizes = list(map(len, bodies))
    largest = max(sizes)
    if largest > limits.max_body:
        raise ColumnFault("bodies")
    system_flags = [0] * len(bodies)
    above, codec = limits.compress_above, limits.compression
    own = routes.compressions(names, above, codec)
    if own or (above is not None and largest > above):
        bodies = list(bodies)
        everywhere = BodyCompression(above, codec)
        for i, (name, body) in enumerate(zip(names, bodies, strict=True)):
            above, codec = own.get(name, everywhere)
            if above is not None and len(body) > above:
                packed = compress(body, codec)
                if len(packed) < len(body):
                    bodies[i], sizes[i] = packed, len(packed)
                    system_flags[i] = codec_flags(codec)
    return bodies, sizes, system_flags


def _check_tokens(tokens: list[str]) -> None:
    """Check keys or ids: texts that are not empty and have no blanks; joining finds values that are
    not texts.
    """
    joined = "".join(tokens)
    if has_separator(joined) or " " in joined or not all(tokens):
        raise ColumnFault("keys or ids")


def _key_columns(keys: Sequence[Any], row: list[Any]) -> tuple[list[str], Sequence[Any]]:
    """All keys in order, and each message's own."""
    if not set(map(type, keys)) <= _LISTS:
        if any(isinstance(k, str) for k in keys):
            raise ColumnFault("keys")
        keys = [tuple(k) for k in keys]
    counts = set(map(len, keys))
    if counts == _ONE:
        tokens = [k for (k,) in keys]
        row += [_KEYS, tokens, "\x02"]
    elif counts == _NONE:
        return [], keys
    else:
        tokens = list(chain.from_iterable(keys))
        row.append([f"{_KEYS}{t}\x02" if t else "" for t in map(" ".join, keys)])
    _check_tokens(tokens)
    return tokens, keys


def _tag_columns(tags: Sequence[str | None], row: list[Any], system_flags: list[int]) -> list[int]:
    """The tags' hashes."""
    texts = list(map(tag_texts.__getitem__, tags))
    row.append(texts)
    if flags_of("".join(texts)):
        system_flags[:] = map(or_, system_flags, map(flags_of, texts))
    return list(map(tag_hashes.__getitem__, tags))


def _property_columns(properties: Sequence[Mapping[str, str]], row: list[Any]) -> None:
    """The messages' own properties."""
    names: set[str] = set().union(*properties)
    if not names <= checked_names and not check_names(names):
        _property_columns([without_transient(p) for p in properties], row)
        return
    if not names:
        if not all(isinstance(p, Mapping) for p in properties):
            raise ColumnFault("properties")
        return
    counts = set(map(len, properties))
    if len(counts) == 1 and len(names) in counts:
        # All have the same properties: a column each, between names that are constants.
        for name in next(iter(properties)):
            values = list(map(itemgetter(name), properties))
            # Joining also finds a value that is not a text.
            if has_separator("".join(values)) or not all(values):
                raise ColumnFault("properties")
            row += ["".join((name, "\x01")), values, "\x02"]
        return
    texts = list(map("\x01".join, chain.from_iterable(map(_items_of, properties))))
    joined = "\x02".join([*texts, ""])
    if (
        joined.count("\x01") != len(texts)
        or joined.count("\x02") != len(texts)
        or "\x01\x02" in joined
        or "\0" in joined
    ):
        raise ColumnFault("properties")
    turn = iter(texts)
    row.append(["".join([next(turn) + "\x02" for _ in range(len(p))]) for p in properties])


def _group_columns(groups: Sequence[str | None], row: list[Any]) -> None:
    if "" in groups or has_separator("".join([g for g in groups if g is not None])):
        raise ColumnFault("groups")
    row.append(["" if g is None else "".join((_GROUP, g, "\x02")) for g in groups])


def _indexed(
    key_levels: Sequence[int], message_ids: list[str], keys: Sequence[Any], tokens: list[str]
) -> tuple[str, array[int]]:
    """The ids and keys for the key index: the text, and the number of them for each message."""
    count = len(key_levels)
    if key_levels.count(2) == count and len(tokens) == count and all(keys):
        pairs = [""] * (2 * count)
        pairs[0::2], pairs[1::2] = message_ids, tokens
        return SEPARATOR.join(pairs), array("I", (2,)) * count
    taken = [
        (message_id, *mine)[: len(mine) + 1 if wanted == 2 else wanted]
        for wanted, message_id, mine in zip(key_levels, message_ids, keys, strict=True)
    ]
    return SEPARATOR.join(chain.from_iterable(taken)), array("I", map(len, taken))


def _as_bytes(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    if isinstance(body, str):
        raise ColumnFault("bodies")
    return bytes(memoryview(body))  # type: ignore[arg-type]  # any other buffer; TypeError if it is none


# --- a single message ---


def prepare_one(
    topic: str,
    body: bytes | bytearray | memoryview,
    queue: int | None,
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str],
    routes: PutRoutes,
    ids: UniqueIds,
    now_ms: int,
    limits: Limits,
) -> PreparedMessage | None:
    """An ordinary message as a batch of one; None if it must be looked at as a batch."""
    kind = type(keys)
    if (
        type(body) is not bytes
        or (kind is not tuple and kind is not list)
        or type(properties) is not dict
        or limits.property_crc
    ):
        return None
    size = len(body)
    try:
        compression = routes.compression_of(topic)
        above = limits.compress_above
        if compression is not None and compression.above is not None:
            above = compression.above
        if size > limits.max_body or (above is not None and size > above):
            return None
        message_id = ids.make_one(now_ms)
        tag_text, joined = tag_texts[tag], " ".join(keys)
        text = _properties_text(message_id, tag_text, joined, keys, properties)
        if text is None:
            return None
        raw = text.encode()
        size += len(raw)
        if len(raw) > limits.max_properties or size > limits.max_record - FIXED_V1:
            return None
        # The topic comes last, because asking for one may make it.
        route = routes.next_route(topic) if queue is None else routes.route_of(topic, queue)
    except (TypeError, ValueError):
        return None
    size += route.overhead
    if size > limits.max_record:
        return None
    indexed, count = message_id, route.key_level
    if count == 2:
        count = 1 + len(keys)
        if keys:
            indexed = f"{message_id}{SEPARATOR}{joined.replace(' ', SEPARATOR)}"
    return PreparedMessage(
        route, message_id, body, raw, size, flags_of(tag_text), tag_hashes[tag], indexed, count
    )


def _properties_text(
    message_id: str, tag_text: str, joined: str, keys: Sequence[str], properties: Mapping[str, str]
) -> str | None:
    """The properties' text; None if something is wrong with it."""
    parts = [_UNIQUE, message_id, "\x02", tag_text]
    if keys:
        if joined.count(" ") != len(keys) - 1 or not all(keys):
            return None
        parts[2:3] = _KEYS_NEXT, joined, "\x02"
    given = joined
    for name, value in properties.items():
        if name not in checked_names or not value:
            return None
        parts += name, "\x01", value, "\x02"
        given += value
    return None if has_separator(given) else "".join(parts)
