"""Batches: put whole or not at all, in order; the store is usable after every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import (
    CallerError,
    Message,
    MessageIllegal,
    Store,
    StoreConfig,
    StoreError,
    TopicNotFound,
)
from kvstore.index.families import Families
from tests.support.segment_files import batch, blanks, bodies, fill_segment, records
from tests.support.stores import SEGMENT, Opens


def test_an_empty_batch_puts_nothing(store: Store) -> None:
    assert store.put_batch([]) == []
    assert store.put_batch(()) == []
    assert store.stats().end_position == 0


def test_results_come_in_the_batchs_order_with_dense_offsets_and_positions(store: Store) -> None:
    store.create_topic("u", queues=2)
    messages = [
        Message("t", b"a", queue=1, tag="x", keys=["k"], born_at=5),
        Message("u", b"", queue=0, flags=7),
        Message("t", bytearray(b"ccc"), queue=1, properties={"p": "q", "__RMQ.TRANSIENT.z": "1"}),
        Message("u", memoryview(b"dddd"), queue=1, message_id="mine", tag="a || b"),
        Message("t", b"e", queue=0, message_group="g", keys=("k", "l")),
    ]
    results = store.put_batch(messages)
    assert [(r.topic, r.queue, r.offset) for r in results] == [
        ("t", 1, 0),
        ("u", 0, 0),
        ("t", 1, 1),
        ("u", 1, 0),
        ("t", 0, 0),
    ]
    at = 0
    for result, message in zip(results, messages, strict=True):
        assert result.position == at
        at += result.size
        found = store.get(result.topic, result.queue, result.offset)
        assert found.body == bytes(message.body)
        assert (found.position, found.size) == (result.position, result.size)
        assert found.message_id == result.message_id
        assert (found.tag, found.keys, found.flags) == (
            message.tag,
            list(message.keys),
            message.flags,
        )
    assert store.stats().end_position == at
    assert [m.body for m in store.query("t", "k")] == [b"e", b"a"]
    assert store.find("mine").body == b"dddd"


WRONG: list[Any] = [
    Message("t", None),  # type: ignore[arg-type]  # what is wrong with it
    Message("t", b"", queue=9),
    Message("nowhere", b""),
    Message("t", b"", tag="\x01"),
    Message("t", b"", properties={"n": ""}),
    Message("t", b"", born_at=-1),
    Message("t", b"", born_at="5"),  # type: ignore[arg-type]  # what is wrong with it
    Message("t", b"", flags=-1),
    Message("t", b"", keys=["\ud800"]),
    Message("t", b"x" * SEGMENT),
    "a text",
    None,
    5,
    ("t", b""),
    {"topic": "t", "body": b""},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda m: str(WRONG.index(m)))
@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_bad_message_writes_none_and_takes_no_offset(
    store: Store, wrong: Any, place: int
) -> None:
    store.put_batch(batch("t", 3))
    before = [store.bounds("t", q) for q in range(4)], store.stats().end_position
    messages: list[Any] = batch("t", 6)
    messages.insert(place, wrong)
    with pytest.raises(ValueError, match=f"message {place} of 7") as caught:
        store.put_batch(messages)
    assert isinstance(caught.value, StoreError)
    assert before == ([store.bounds("t", q) for q in range(4)], store.stats().end_position)
    assert [r.offset for r in store.put_batch(batch("t", 2))] == [3, 4]
    assert bodies(store, "t", 0) == [b"0", b"1", b"2", b"0", b"1"]
    assert store.verify().problems == []


def test_the_first_of_several_bad_messages_is_named(store: Store) -> None:
    with pytest.raises(MessageIllegal, match="message 1 of 4"):
        store.put_batch(
            [
                Message("t", b""),
                Message("t", b"", tag=""),
                Message("t", b"", flags=-1),
                Message("t", b"", queue=-1),
            ]
        )


def test_a_stored_message_is_no_message_to_put(store: Store) -> None:
    """The likely mistake of one who copies messages from topic to topic."""
    store.put("t", b"x", queue=0)
    read: Any = store.get("t", 0, 0)
    for messages in ([read], [Message("t", b""), read], [read, Message("t", b"")]):
        with pytest.raises(MessageIllegal, match=f"message {messages.index(read)} of"):
            store.put_batch(messages)


@pytest.mark.parametrize("messages", [None, 5, Message("t", b"x"), object()])
def test_what_is_no_list_of_messages_is_refused(store: Store, messages: Any) -> None:
    with pytest.raises(CallerError):
        store.put_batch(messages)
    assert store.put("t", b"x", queue=0).offset == 0


def test_a_refused_batch_does_not_make_topics(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, auto_create_topics=True))
    store.create_topic("there", queues=2)
    whole = Message("new", b"x")
    large = SEGMENT - 100
    refused: list[Message] = [
        Message("new", b"x", tag=""),
        Message("new", b"x", queue=4),
        Message("new", b"x", queue=-1),
        Message("other", b"x", queue=2**40),
        Message("other", b"x", queue="0"),  # type: ignore[arg-type]  # the point
        Message("there", b"x", queue=2),
        Message("a b", b"x"),
        Message("%RETRY%" + "n" * 248, b"x" * large),
        Message("other", b"x" * large),
    ]
    for bad in refused:
        for batch_ in ([whole, bad], [bad, whole], [bad], [whole, Message("there", b""), bad]):
            with pytest.raises(CallerError):
                store.put_batch(batch_)
        with pytest.raises(CallerError):
            store.put(bad.topic, bad.body, queue=bad.queue, tag=bad.tag)
        assert [t.name for t in store.topics()] == ["there"], bad
    assert store.stats().end_position == 0
    for m in (whole, Message("other", b"x", queue=3), Message("third", b"x", message_group="g")):
        assert store.put_batch([m, m])[1].topic == m.topic
        assert store.topic(m.topic).read_queues == 4
    assert store.put("fourth", b"x", queue=3).queue == 3
    assert store.put("fifth", b"x").offset == 0


def test_a_batch_to_many_new_topics_makes_them_in_one_write(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = Families.write

    def counted(self: Families, *args: Any, **more: Any) -> None:
        writes.append(1)
        write(self, *args, **more)

    counts = []
    for number in (1, 100):
        store = opens(StoreConfig(segment_size=SEGMENT, auto_create_topics=True))
        monkeypatch.setattr(Families, "write", counted)
        writes.clear()
        store.put_batch([Message(f"device-{number}-{n}", b"x") for n in range(number)])
        counts.append(len(writes))
        monkeypatch.undo()
        assert len(store.topics()) == number + (number > 1)
        store.close()
    assert counts[0] == counts[1] > 0


def test_a_put_to_no_topic_says_so_and_how_to_make_it(store: Store) -> None:
    for put in (
        lambda: store.put("none", b"x"),
        lambda: store.put("none", b"x", queue=9),
        lambda: store.put_batch([Message("t", b"x"), Message("none", b"x", queue=3)]),
    ):
        with pytest.raises(TopicNotFound, match="auto_create_topics=True"):
            put()
    assert store.stats().end_position == 0


def test_a_batch_larger_than_a_segment_goes_over_several(store: Store) -> None:
    messages = [Message("t", bytes([i]) * 1000, queue=i % 4) for i in range(250)]
    results = store.put_batch(messages)
    assert store.stats().end_position > 3 * SEGMENT
    assert len(blanks(store)) == store.stats().end_position // SEGMENT
    assert [r.body for r in records(store)] == [m.body for m in messages]
    assert [r.offset for r in results] == [i // 4 for i in range(250)]
    for queue in range(4):
        assert bodies(store, "t", queue) == [m.body for m in messages[queue::4]]


def test_a_batch_lies_where_its_messages_would_lie_if_they_were_put_one_by_one(
    opens: Opens,
) -> None:
    """The first, the second and the third segment are filled by the same rule."""
    one, all_ = opens(name="one"), opens(name="all")
    messages = [Message("t", bytes(500 + 700 * (i % 7)), queue=0) for i in range(150)]
    for store in (one, all_):
        store.create_topic("t")
        store.put("t", bytes(30_000), queue=0)
    singly = [one.put("t", message.body, queue=0) for message in messages]
    assert one.stats().end_position > 5 * SEGMENT
    assert [r.position for r in all_.put_batch(messages)] == [r.position for r in singly]


def test_a_batch_goes_over_a_segments_end(store: Store) -> None:
    fill_segment(store, leave=1000)
    first = store.bounds("t", 0).next_offset
    results = store.put_batch([Message("t", bytes([i]) * 200, queue=0) for i in range(10)])
    assert results[0].position < SEGMENT < results[-1].position
    assert [r.offset for r in results] == list(range(first, first + 10))
    assert bodies(store, "t", 0)[-10:] == [bytes([i]) * 200 for i in range(10)]


def test_a_batch_of_seventy_thousand_gets_as_many_ids(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=16 << 20))
    store.create_topic("t")
    results = store.put_batch([Message("t", b"", queue=0)] * 70_000)
    assert len({r.message_id for r in results}) == 70_000
    assert store.find(results[65_537].message_id).offset == 65_537


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_bodies_above_the_limit_are_compressed_and_come_back(opens: Opens, codec: Any) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, compress_above=100, compression=codec))
    store.create_topic("t")
    flags = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}[codec]
    long, short, noise = b"abc" * 500, b"a" * 100, bytes((i * 7919 >> 3) & 255 for i in range(200))
    store.put_batch(
        [Message("t", b, queue=0, tag="g") for b in (long, short, b"", noise, long + b"!")]
    )
    assert bodies(store, "t", 0) == [long, short, b"", noise, long + b"!"]
    raw = records(store)
    assert raw[0].system_flags == flags
    assert len(raw[0].body) < 200
    assert raw[1].system_flags == 0
    assert raw[1].body == short
    assert store.verify().problems == []
    store.close()
    assert bodies(opens(), "t", 0)[0] == long


def test_a_body_larger_than_a_segment_fits_when_it_is_compressed(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, compress_above=0))
    store.create_topic("t")
    store.put_batch([Message("t", bytes(1 << 20), queue=0), Message("t", b"x", queue=0)])
    assert bodies(store, "t", 0) == [bytes(1 << 20), b"x"]


def test_a_compressible_body_is_not_what_is_wrong_with_a_batch(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, compress_above=0))
    store.create_topic("t")
    with pytest.raises(MessageIllegal, match="message 1 of 2: tag"):
        store.put_batch([Message("t", bytes(1 << 20), queue=0), Message("t", b"x", tag="")])
