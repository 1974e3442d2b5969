"""The records that the encoder makes say what their messages say, as the plain reader reads them;
faults of any kind refuse a batch, and whatever changes meanwhile changes no record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.encoding import Encoder, PreparedBatch, PutRoute
from kvstore.core.hashing import xxh32
from kvstore.core.names import (
    DATES_BEGIN,
    DATES_END,
    RESERVED,
    TRANSIENT_PREFIX,
)
from kvstore.core.put_values import Message, PutStatus
from kvstore.core.queue_offsets import QueueHeads, QueueOffsets
from kvstore.core.tail import Tail
from kvstore.core.unique_ids import UniqueIds
from kvstore.record.compression import compressed, decompress
from kvstore.record.ids import pack_host
from tests.reference import records as plain
from tests.support.tails import keys_of

HOSTS = ("127.0.0.1", "::1")
QUEUES = 4
BORN = 1_700_000_000_000
WINDOW = 60_000
"""The dedup window of all topics but two, in ms."""
LONG = "%RETRY%" + "t" * 200
"""A topic whose records are V2."""


class Routes(dict[str, PutRoute]):
    """Topics that there are, and one that is made when somebody puts to it."""

    def __init__(self, host: bytes, key_levels: Mapping[str, int], kinds: Sequence[str]) -> None:
        super().__init__()
        self._host_size = len(host)
        for number, (name, level) in enumerate(key_levels.items()):
            self[name] = self._route(name, number, level)
        for kind in kinds:
            self[kind] = self._route(kind, len(self), 2, kind)

    def _route(self, name: str, number: int, level: int, kind: str = "normal") -> PutRoute:
        topic = name.encode()
        wide = 2 if len(topic) > 127 else 1
        wire = len(topic).to_bytes(wide, "big") + topic
        magic = plain.V2 if wide == 2 else plain.V1
        window = None if name in ("new", "windowless") else WINDOW
        return PutRoute(
            number << 32, QUEUES, self._host_size, magic, wire, level, None, None,
            kind=kind, dedup_window=window,
        )  # fmt: skip

    def find(self, name: str) -> PutRoute | None:
        return None

    def make_pending(self, name: str) -> PutRoute:
        if name not in self:
            self[name] = self._route(name, len(self), 1)
        return self[name]

    def make_missing(
        self, names: Sequence[str], queues: Any, sizes: Any, record_max: int
    ) -> list[PutRoute]:
        for name in names:
            if name not in self:
                self[name] = self._route(name, len(self), 2)
        return [self[name] for name in names]


def encoder(
    host: str = HOSTS[0],
    *,
    above: int | None = None,
    crc: bool = False,
    kinds: Sequence[str] = (),
) -> Encoder:
    """An encoder; it has a topic of each of the kinds, named by it."""
    packed = pack_host(host, 10911)
    return Encoder(
        Routes(packed, {"t": 2, "unique": 1, "off": 0, "windowless": 2, LONG: 2}, kinds),
        UniqueIds(packed[:-4], 1, 2),
        compressed,
        packed,
        reserved=RESERVED,
        transient=TRANSIENT_PREFIX.encode(),
        max_body=1 << 20,
        max_record=1 << 21,
        max_properties=32767,
        compress_above=above,
        compression="zlib",
        property_crc=crc,
        any_time=False,
        cut_ms=0,
    )


TEXT = st.text(st.characters(min_codepoint=3, exclude_categories=["Cs"]), min_size=1, max_size=20)
TOKEN = st.text(st.characters(min_codepoint=33, exclude_categories=["Cs"]), min_size=1, max_size=20)
NAMES = TEXT.filter(lambda name: name not in RESERVED)
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["t", "unique", "off", "new", LONG]),
    body=st.binary(max_size=300) | st.builds(bytearray, st.binary(max_size=5)),
    queue=st.none() | st.integers(0, QUEUES - 1),
    tag=st.none() | TEXT | st.just("a||b"),
    keys=st.lists(TOKEN, max_size=3) | st.tuples(TOKEN),
    properties=st.dictionaries(NAMES | st.just(TRANSIENT_PREFIX + "x"), TEXT, max_size=3),
    message_group=st.none() | TEXT,
    flags=st.integers(0, (1 << 32) - 1),
    message_id=st.none() | TOKEN,
    born_at=st.none() | st.integers(0, (1 << 63) - 1),
    expires_at=st.none() | st.integers(DATES_BEGIN, DATES_END - 1),
)
IDS = st.text(
    st.characters(min_codepoint=3, exclude_categories=["Cs"]), min_size=1, max_size=63
) | st.sampled_from("ab")


def _with_id(message: Message, dedup_id: str | None) -> Message:
    """With an id, unless its topic is to be made: such a topic has no window."""
    return message.__replace__(dedup_id=None if message.topic == "new" else dedup_id)


WITH_IDS = st.builds(_with_id, MESSAGES, st.none() | IDS)


def placed(batch: PreparedBatch, position: int = 0, *, tail: Tail | None = None) -> bytes:
    offsets = QueueOffsets(lambda queue: 100 + (queue & 0xFF))
    [(found, data)] = (Tail(0) if tail is None else tail).add(
        batch, offsets, position, 1 << 60, BORN
    )
    assert found == position
    return data


def expected_properties(message: Message, message_id: str) -> bytes:
    pairs = [("UNIQ_KEY", message_id)]
    if message.dedup_id is not None:
        pairs.insert(0, ("__DEDUP", message.dedup_id))
    if message.expires_at is not None:
        pairs.insert(0, ("__EXPIRES_AT", f"{message.expires_at:013}"))
    if message.keys:
        pairs.append(("KEYS", " ".join(message.keys)))
    if message.tag is not None:
        pairs.append(("TAGS", message.tag))
    own = message.properties.items()
    pairs += [(k, v) for k, v in own if not k.startswith(TRANSIENT_PREFIX)]
    if message.message_group is not None:
        pairs.append(("__SHARDINGKEY", message.message_group))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


@given(
    st.lists(WITH_IDS, min_size=1, max_size=6),
    st.sampled_from(HOSTS),
    st.booleans(),
    st.none() | st.integers(0, 100),
)
def test_a_record_says_what_its_message_says(
    messages: list[Message], host: str, crc: bool, above: int | None
) -> None:
    batch = encoder(host, above=above, crc=crc).prepare(messages, BORN)
    tail = Tail(0)
    data = placed(batch, 5000, tail=tail)
    results = batch.results(PutStatus.WRITTEN)
    at = 0
    offsets: dict[int, int] = {}
    keys: list[tuple[int, int]] = []
    for message, result, queue_key in zip(messages, results, batch.queue_keys, strict=True):
        record = plain.read(data[at:], 5000 + at)
        assert plain.check(data[at:], 5000 + at, crc) == record.size == result.size
        assert record.version == (2 if message.topic == LONG else 1)
        assert (record.topic.decode(), record.queue) == (message.topic, result.queue)
        assert message.queue is None or record.queue == message.queue
        assert record.queue == queue_key & 0xFFFFFFFF
        offset = offsets.setdefault(queue_key, 100 + (queue_key & 0xFF))
        offsets[queue_key] += 1
        assert record.offset == offset == result.offset
        assert record.position == 5000 + at == result.position
        assert record.flags == message.flags
        assert record.born_at == (BORN if message.born_at is None else message.born_at)
        assert record.stored_at == BORN
        assert record.born_host == record.store_host == pack_host(host, 10911)
        assert (record.reconsume_times, record.prepared_position) == (0, 0)
        body = record.body
        if record.system_flags & 1:
            body = decompress(body, record.system_flags)
            assert len(record.body) < len(body)
        assert body == message.body
        assert bool(record.system_flags & 2) == ("||" in (message.tag or ""))
        raw = expected_properties(message, result.message_id)
        assert record.properties[: -20 if crc else None] == raw
        assert message.message_id in (None, result.message_id)
        entry = {row[2]: row for row in tail.entry_columns().T.tolist()}[record.position]
        tag_hash = plain.java_hash(message.tag or "")
        assert entry == [queue_key, offset, record.position, record.size, tag_hash, BORN]
        indexed = [result.message_id, *message.keys]
        indexed = indexed[: {"off": 0, "unique": 1}.get(message.topic)]
        if message.dedup_id is not None:
            indexed.insert(0, f"__DEDUP\x01{message.dedup_id}")
        keys += [(record.position, xxh32(key.encode())) for key in indexed]
        at += record.size
    assert at == len(data)
    assert [(p, found) for _, p, found in keys_of(tail)] == keys


@given(st.lists(MESSAGES, min_size=1, max_size=6), st.integers(2000, 9000), st.integers(0, 20_000))
def test_a_segment_gets_the_messages_before_the_first_that_has_no_room(
    messages: list[Message], segment: int, position: int
) -> None:
    batch = encoder().prepare(messages, BORN)
    position -= position % segment % 8
    offsets = QueueOffsets(lambda queue: 0)
    sizes = [len(placed(encoder().prepare([message], BORN))) for message in messages]
    if max(sizes) > segment - 8:
        with pytest.raises(ValueError, match="larger than a segment"):
            Tail(0).add(batch, offsets, position, segment, BORN)
        return
    pieces = Tail(0).add(batch, offsets, position, segment, BORN)
    results = batch.results(PutStatus.WRITTEN)
    expected: list[tuple[int, int]] = [(position, 0)]
    for result, size in zip(results, sizes, strict=True):
        at, taken = expected[-1]
        if at % segment + taken + size > segment - 8:
            at, taken = (at // segment + 1) * segment, 0
            expected.append((at, 0))
        assert result.position == at + taken
        expected[-1] = at, taken + size
    assert [(at, len(data)) for at, data in pieces] == expected


class Loose(str):
    """A text that is equal to any other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Derived(Message):
    """A message that computes a field."""

    def __getattribute__(self, name: str) -> Any:
        return "computed" if name == "tag" else super().__getattribute__(name)


FAULTS: dict[str, dict[str, Any]] = {
    "no text as topic": {"topic": 5},
    "no hashable topic": {"topic": []},
    "a text as body": {"body": "x"},
    "a number as body": {"body": 5},
    "a large body": {"body": bytes((1 << 20) + 1)},
    "a queue that is none": {"queue": QUEUES},
    "a negative queue": {"queue": -1},
    "a huge queue": {"queue": 1 << 70},
    "a truth value as queue": {"queue": True},
    "an empty tag": {"tag": ""},
    "a tag with a separator": {"tag": "a\x01"},
    "a tag that is no text": {"tag": b"a"},
    "a tag without UTF-8": {"tag": "\ud800"},
    "a text as keys": {"keys": "key"},
    "no list of keys": {"keys": 5},
    "an empty key": {"keys": [""]},
    "a key with a blank": {"keys": ["a b"]},
    "a key that is no text": {"keys": [b"a"]},
    "an id with a blank": {"message_id": "a b"},
    "an empty id": {"message_id": ""},
    "no mapping": {"properties": [("a", "b")]},
    "an empty name": {"properties": {"": "x"}},
    "an empty value": {"properties": {"x": ""}},
    "a reserved name": {"properties": {"KEYS": "x"}},
    "a reserved name in disguise": {"properties": {Loose("TAGS"): "x"}},
    "a name that is no text": {"properties": {5: "x"}},
    "a value with a zero": {"properties": {"x": "\0"}},
    "a value that is no text": {"properties": {"x": None}},
    "many properties": {"properties": {"x": "y" * 32768}},
    "an empty group": {"message_group": ""},
    "negative flags": {"flags": -1},
    "flags of 33 bits": {"flags": 1 << 32},
    "flags that are none": {"flags": None},
    "a time before the epoch": {"born_at": -1},
    "a time of 64 bits": {"born_at": 1 << 63},
    "a fraction as time": {"born_at": 1.5},
    "an empty dedup id": {"dedup_id": ""},
    "a dedup id of 256 bytes": {"dedup_id": "é" * 128},
    "a dedup id that is no text": {"dedup_id": b"a"},
    "a dedup id with a separator": {"dedup_id": "a\x02"},
    "a dedup id without UTF-8": {"dedup_id": "\ud800"},
    "a dedup id where there is no window": {"dedup_id": "a", "topic": "windowless"},
    "a dedup id in a topic that is to be made": {"dedup_id": "a", "topic": "new"},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_message_with_a_fault_refuses_its_batch(fault: dict[str, Any]) -> None:
    fields = {"topic": "t", "body": b"x", **fault}
    with pytest.raises((ValueError, TypeError, AttributeError, LookupError)):
        encoder().prepare([Message("t", b"good"), Message(**fields)], BORN)


def test_a_value_that_is_no_message_refuses_its_batch() -> None:
    for value in (None, "text", {"topic": "t"}):
        with pytest.raises(ValueError, match="not all are messages"):
            encoder().prepare([Message("t", b"x"), value], BORN)  # type: ignore[list-item]


def test_fields_that_a_class_computes_are_read_as_they_are_computed() -> None:
    data = placed(encoder().prepare([Derived("t", b"x")], BORN))
    assert plain.find_property(plain.read(data, 0).properties, b"TAGS") == b"computed"


def test_a_batch_that_changes_while_it_is_read_gives_whole_records() -> None:
    messages = [Message("t", b"1"), Message("t", b"2", keys=()), Message("t", b"3")]

    class Keys(list[str]):
        """Keys that change the batch when they are read."""

        def __iter__(self) -> Any:
            messages[2].topic = "unique"
            messages[2].body = b"changed"
            messages.clear()
            return iter(["k"])

    messages[1].keys = Keys(["k"])
    batch = encoder().prepare(messages, BORN)
    data = placed(batch)
    assert len(batch) == 3
    found = []
    at = 0
    while at < len(data):
        found.append(plain.read(data[at:], at))
        at += found[-1].size
    assert [(record.topic, record.body) for record in found] == [
        (b"t", b"1"), (b"t", b"2"), (b"unique", b"changed"),
    ]  # fmt: skip


def test_a_body_that_changes_after_it_was_taken_changes_no_record() -> None:
    body = bytearray(b"before")
    batch = encoder().prepare([Message("t", body)], BORN)
    body[:] = b"after!"
    data = placed(batch)
    assert plain.check(data, 0, False) == len(data)
    assert plain.read(data, 0).body == b"before"


def test_more_messages_than_a_millisecond_has_ids_get_different_ones() -> None:
    batch = encoder().prepare([Message("off", b"")] * 70_000, BORN)
    placed(batch)
    ids = {result.message_id for result in batch.results(PutStatus.WRITTEN)}
    assert len(ids) == 70_000
    assert {len(found) for found in ids} == {32}


def test_offsets_are_asked_for_once_a_queue_until_they_are_forgotten() -> None:
    asked: list[int] = []

    def end(queue: int) -> int:
        asked.append(queue)
        return 10

    offsets, tail = QueueOffsets(end), Tail(0)
    batch = encoder().prepare([Message("t", b"", queue=n % 2) for n in range(6)], BORN)

    def given_offsets() -> list[int]:
        tail.add(batch, offsets, 0, 1 << 30, BORN)
        return [result.offset for result in batch.results(PutStatus.WRITTEN)]

    given_offsets()
    assert given_offsets() == [13, 13, 14, 14, 15, 15]
    assert asked == batch.queue_keys[:2]
    offsets.forget(batch.queue_keys[1])
    assert given_offsets() == [16, 10, 17, 11, 18, 12]
    assert len(offsets) == 2
    offsets.forget_all()
    assert len(offsets) == 0
    given_offsets()
    assert len(asked) == 5


def test_the_heads_of_queues_are_known_until_they_are_forgotten() -> None:
    heads, queues = QueueHeads(), [topic << 32 | queue for topic in range(50) for queue in range(8)]
    heads.note(queues, list(range(400)), list(range(-1, 399)))
    heads.note(queues[:2], [1 << 40, -5], [7, 7])
    assert [heads.next_offset(queue) for queue in queues] == [1 << 40, None, *range(2, 400)]
    assert [heads.segment(queue) for queue in queues] == [7, None, *range(1, 399)]
    heads.forget(queues[3])
    heads.forget(1 << 50)
    assert (heads.next_offset(queues[3]), heads.segment(queues[3])) == (None, None)
    heads.note([queues[3]], [9], [-1])
    assert (heads.next_offset(queues[3]), heads.segment(queues[3])) == (9, -1)
    assert len(heads) == 400
    with pytest.raises(ValueError, match="one next offset"):
        heads.note([queues[3], queues[4]], [9], [-1, -1])
    heads.forget_all()
    assert (len(heads), heads.next_offset(queues[0]), heads.segment(queues[0])) == (0, None, None)


def test_a_batch_that_gets_no_offset_leaves_the_tail_as_it_was() -> None:
    def end(queue: int) -> int:
        raise OSError("no index")

    batch, tail = encoder().prepare([Message("t", b"x")], BORN), Tail(0)
    with pytest.raises(OSError, match="no index"):
        tail.add(batch, QueueOffsets(end), 0, 1 << 30, BORN)
    assert (len(tail), tail.keys_held) == (0, 0)


def test_a_tail_refuses_a_place_that_is_none() -> None:
    batch = encoder().prepare([Message("t", b"x")], BORN)
    for position, segment in ((-1, 1 << 30), (0, 8), (0, 0), (0, -5)):
        with pytest.raises(ValueError, match="no such position or segment"):
            Tail(0).add(batch, QueueOffsets(lambda queue: 0), position, segment, BORN)


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("normal", {"plain", "ordered", "delayed", "prepared"}),
        ("fifo", {"ordered"}),
        ("delay", {"delayed"}),
        ("transaction", {"prepared"}),
    ],
)
def test_a_route_takes_the_messages_of_its_kind(kind: str, taken: set[str]) -> None:
    made = encoder(kinds=[kind])
    fields: dict[str, dict[str, Any]] = {
        "plain": {}, "ordered": {"message_group": "g"}, "delayed": {"delay": 5}, "prepared": {},
    }  # fmt: skip
    for name, given_fields in fields.items():
        message = Message(kind, b"x", **given_fields)
        held = [(b"TRAN_MSG\x01true\x02", BORN + 5000)] if name == "prepared" else None
        if name in taken:
            assert len(made.prepare([message], BORN, held)) == 1
        else:
            with pytest.raises(ValueError, match="kind does not take"):
                made.prepare([message], BORN, held)
        assert len(made.prepare([message], BORN, held, any_kind=True)) == 1


@pytest.mark.parametrize("raw", [None, "text", bytearray(b"x"), 5])
def test_properties_of_a_prepared_message_that_are_no_bytes_are_refused(raw: Any) -> None:
    with pytest.raises(TypeError):
        encoder().prepare([Message("t", b"x")], BORN, [(raw, BORN + 5000)])
