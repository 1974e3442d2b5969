"""A message's fields, one by one, at their limits and one beyond."""

from __future__ import annotations

import array
import mmap
from typing import Any

import pytest

from kvstore import (
    CallerError,
    Message,
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLarge,
    QueueNotFound,
    Store,
    StoreConfig,
    TopicNotFound,
)
from tests.support.segment_files import records
from tests.support.stores import SEGMENT, Opens

SURROGATE = "a\ud800b"
SEPARATORS = ["a\x01b", "\x01", "a\x02b", "\x02"]


def is_refused(store: Store, kind: type[CallerError], wrong: Any) -> CallerError:
    """A batch with `wrong` in it is refused whole, and the next put is as if it had not been."""
    before = store.bounds("t", 0), store.stats().end_position, [t.name for t in store.topics()]
    good = Message("t", b"good", queue=0)
    with pytest.raises(kind) as caught:
        store.put_batch([good, wrong, good])
    error = caught.value
    assert isinstance(error, ValueError)
    after = store.bounds("t", 0), store.stats().end_position, [t.name for t in store.topics()]
    assert after == before
    result = store.put("t", b"after", queue=0)
    assert (result.offset, result.position) == (before[0].next_offset, before[1])
    assert store.get("t", 0, result.offset).body == b"after"
    assert records(store)[-1].offset == result.offset
    assert "message 1" in str(error), "the error doesn't name the message"
    return error


@pytest.mark.parametrize(
    "topic", ["", "a" * 128, "a b", "a/b", "a.b", "ä", "a\n", SURROGATE, None, 5, b"t", ["t"]]
)
def test_a_topic_that_can_not_be_one_is_refused(store: Store, topic: Any) -> None:
    is_refused(store, MessageIllegal, Message(topic, b"x"))


def test_a_topic_that_is_not_there_is_refused(store: Store) -> None:
    is_refused(store, TopicNotFound, Message("nowhere", b"x"))


@pytest.mark.parametrize("name", ["a", "a" * 127, "%RETRY%" + "g" * 248, "%DLQ%g", "a|b-c_d%9"])
def test_a_topic_may_have_any_legal_name_to_the_limit(store: Store, name: str) -> None:
    store.create_topic(name, queues=1)
    store.put(name, b"x", queue=0)
    assert store.get(name, 0, 0).topic == name


def test_a_retry_topic_of_256_characters_is_refused(store: Store) -> None:
    is_refused(store, MessageIllegal, Message("%RETRY%" + "g" * 249, b"x"))


@pytest.mark.parametrize("queue", [-1, True, 1.5, "3", b"1", -(1 << 70)])
def test_what_is_no_queue_number_is_refused(store: Store, queue: Any) -> None:
    is_refused(store, MessageIllegal, Message("t", b"x", queue=queue))


@pytest.mark.parametrize("queue", [4, 1 << 32, 1 << 70])
def test_a_queue_beyond_the_last_is_refused_and_the_error_says_which(
    store: Store, queue: int
) -> None:
    error = is_refused(store, CallerError, Message("t", b"x", queue=queue))
    assert isinstance(error, (MessageIllegal, QueueNotFound))
    assert str(queue) in str(error)


def test_the_first_and_the_last_queue_take_messages(store: Store) -> None:
    assert store.put("t", b"a", queue=0).queue == 0
    assert store.put("t", b"b", queue=3).queue == 3


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b"", b""),
        (b"abc", b"abc"),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abcdef"), b"abcdef"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(b"abcdef")[::-1], b"fedcba"),
        (memoryview(array.array("H", [1, 2])), array.array("H", [1, 2]).tobytes()),
        (array.array("I", [1, 2, 3]), array.array("I", [1, 2, 3]).tobytes()),
        (memoryview(b"abcd").cast("B", (2, 2)), b"abcd"),
    ],
)
def test_any_bytes_like_object_is_a_body(store: Store, body: Any, stored: bytes) -> None:
    assert store.get("t", 0, store.put("t", body, queue=0).offset).body == stored
    assert records(store)[-1].body == stored


def test_a_body_may_be_a_map(store: Store) -> None:
    with mmap.mmap(-1, 100) as body:
        store.put("t", body, queue=0)  # type: ignore[arg-type]  # typed as bytes-like from Python 3.12 on
    assert store.get("t", 0, 0).body == bytes(100)


def test_a_body_changed_after_the_put_stays_as_it_was_put(store: Store) -> None:
    body = bytearray(b"before")
    store.put("t", body, queue=0)
    body[:] = b"behind"
    assert store.get("t", 0, 0).body == b"before"


@pytest.mark.parametrize("body", [None, "text", 5, 1.5, ["a"], object()])
def test_what_is_no_bytes_is_no_body(store: Store, body: Any) -> None:
    is_refused(store, MessageIllegal, Message("t", body))


def test_a_released_memoryview_is_no_body(store: Store) -> None:
    body = memoryview(b"abc")
    body.release()
    is_refused(store, MessageIllegal, Message("t", body))


def test_a_body_of_the_maximum_is_taken_and_one_byte_more_refused(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, max_body=1000))
    store.create_topic("t")
    store.put("t", b"x" * 1000, queue=0)
    error = is_refused(store, MessageTooLarge, Message("t", b"x" * 1001))
    assert isinstance(error, MessageTooLarge)
    assert (error.size, error.limit) == (1001, 1000)


def test_four_mebibytes_are_the_maximum_by_itself(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=8 << 20))
    store.create_topic("t")
    body = bytes(range(256)) * (4 << 12)
    store.put("t", body, queue=0)
    assert store.get("t", 0, 0).body == body
    is_refused(store, MessageTooLarge, Message("t", body + b"x"))


def test_a_record_that_just_fits_a_segment_is_taken_and_one_byte_more_refused(store: Store) -> None:
    overhead = store.put("t", b"", queue=0).size
    most = SEGMENT - 8 - overhead
    store.put("t", b"x" * most, queue=0)
    assert store.get("t", 0, 1).body == b"x" * most
    store.put("t", b"y", queue=0)
    is_refused(store, MessageTooLarge, Message("t", b"x" * (most + 1), queue=0))


TEXT_FIELDS = ["tag", "message_id", "message_group"]


@pytest.mark.parametrize("field", TEXT_FIELDS)
@pytest.mark.parametrize("value", ["", SURROGATE, 5, b"a", True, ["a"], *SEPARATORS])
def test_a_field_that_is_no_text_is_refused(store: Store, field: str, value: Any) -> None:
    is_refused(store, MessageIllegal, Message("t", b"x", **{field: value}))


@pytest.mark.parametrize(
    "keys",
    [
        "one",
        [""],
        ["a", ""],
        ["a b"],
        [SURROGATE],
        [5],
        [None],
        [b"a"],
        None,
        5,
        *[[s] for s in SEPARATORS],
    ],
)
def test_keys_that_can_not_be_stored_are_refused(store: Store, keys: Any) -> None:
    is_refused(store, MessageIllegal, Message("t", b"x", keys=keys))


def test_a_message_id_with_a_blank_is_refused(store: Store) -> None:
    is_refused(store, MessageIllegal, Message("t", b"x", message_id="a b"))


@pytest.mark.parametrize(
    "properties",
    [
        {"": "v"},
        {"n": ""},
        {5: "v"},
        {"n": 5},
        {"n": None},
        {b"n": "v"},
        {SURROGATE: "v"},
        {"n": SURROGATE},
        {None: "v"},
        *[{s: "v"} for s in SEPARATORS],
        *[{"n": s} for s in SEPARATORS],
        {"a": "1", "": "2"},
        {"a": "1", "b": ""},
        None,
        5,
        "n=v",
        [("n", "v")],
        ["n"],
    ],
)
def test_properties_that_can_not_be_stored_are_refused(store: Store, properties: Any) -> None:
    is_refused(store, MessageIllegal, Message("t", b"x", properties=properties))


@pytest.mark.parametrize(
    "name",
    [
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "__SHARDINGKEY",
        "WAIT",
        "DELAY",
        "PGROUP",
        "__CRC32#",
        "REAL_TOPIC",
    ],
)
def test_a_reserved_property_is_refused(store: Store, name: str) -> None:
    is_refused(store, MessageIllegal, Message("t", b"x", properties={name: "v"}))
    is_refused(store, MessageIllegal, Message("t", b"x", properties={"fine": "v", name: "v"}))


def test_a_zero_character_is_refused_in_every_text(store: Store) -> None:
    """Zeros in a record's properties are what recovery knows a torn write by."""
    for wrong in (
        Message("t", b"x", tag="a\0"),
        Message("t", b"x", keys=["fine", "\0"]),
        Message("t", b"x", properties={"n": "a\0b"}),
        Message("t", b"x", properties={"n\0": "a"}),
        Message("t", b"x", message_group="\0"),
        Message("t", b"x", message_id="a\0"),
    ):
        is_refused(store, MessageIllegal, wrong)


def test_transient_properties_are_never_stored(store: Store) -> None:
    store.put(
        "t", b"x", queue=0, properties={"a": "1", "__RMQ.TRANSIENT.x": "2", "b": "3"}, keys=["k"]
    )
    store.put("t", b"x", queue=0, properties={"__RMQ.TRANSIENT.x": "2"})
    assert store.get("t", 0, 0).user_properties == {"a": "1", "b": "3"}
    assert store.get("t", 0, 1).user_properties == {}
    assert b"TRANSIENT" not in records(store)[0].properties + records(store)[1].properties


@pytest.mark.parametrize("text", ["ä", "日本語", "😀", "a b", "a=b;c", "\t", "\x03", "||"])
def test_unicode_and_odd_characters_come_back_as_they_were_put(store: Store, text: str) -> None:
    store.put("t", b"x", queue=0, tag=text, properties={text: text}, message_group=text, born_at=7)
    found = store.get("t", 0, 0)
    assert (found.tag, found.message_group) == (text, text)
    assert found.user_properties == {text: text}
    assert store.pull("t", 0, 0).messages == [found]


@pytest.mark.parametrize(
    "key",
    ["ä", "日本語", "😀", "a=b;c", "\t", "a\tb", "a\nb", "\u3000", "a\u00a0b", "\x1f"],
)
def test_a_key_of_any_characters_but_the_separators_is_found(store: Store, key: str) -> None:
    store.put("t", b"x", queue=0, keys=["first", key, "last"])
    assert store.get("t", 0, 0).keys == ["first", key, "last"]
    assert [m.body for m in store.query("t", key)] == [b"x"]
    store.checkpoint()
    assert [m.body for m in store.query("t", key)] == [b"x"]


@pytest.mark.parametrize("sequence", [["a", "b"], ("a", "b"), {"a": 1, "b": 2}.keys()])
def test_keys_may_be_any_sequence_of_texts(store: Store, sequence: Any) -> None:
    store.put("t", b"x", queue=0, keys=sequence)
    assert store.get("t", 0, 0).keys == ["a", "b"]
    assert store.query("t", "a") == store.query("t", "b") == [store.get("t", 0, 0)]


def properties_of(size: int, overhead: int) -> dict[str, str]:
    """One property that takes `size` bytes with everything that stands beside it."""
    return {"p": "v" * (size - overhead - 3)}


@pytest.mark.parametrize("crc", [False, True])
def test_properties_of_32767_bytes_are_taken_and_one_more_refused(opens: Opens, crc: bool) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, property_crc=crc))
    store.create_topic("t")
    store.put("t", b"x", queue=0)
    overhead = len(records(store)[0].properties)
    store.put("t", b"x", queue=0, properties=properties_of(32767, overhead))
    assert len(records(store)[1].properties) == 32767
    assert len(store.get("t", 0, 1).properties["p"]) == 32767 - overhead - 3
    wrong = Message("t", b"x", queue=0, properties=properties_of(32768, overhead))
    error = is_refused(store, PropertiesTooLarge, wrong)
    assert isinstance(error, PropertiesTooLarge)
    assert (error.size, error.limit) == (32768, 32767)


def test_many_properties_are_too_large_together(store: Store) -> None:
    properties = {f"name-{i}": "v" * 100 for i in range(400)}
    is_refused(store, PropertiesTooLarge, Message("t", b"x", properties=properties))


def test_a_lower_limit_of_properties_holds(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, max_properties=200))
    store.create_topic("t")
    store.put("t", b"x", queue=0, properties={"p": "v" * 100})
    is_refused(store, PropertiesTooLarge, Message("t", b"x", properties={"p": "v" * 200}))


@pytest.mark.parametrize("flags", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_flags_are_any_32_bits(store: Store, flags: int) -> None:
    store.put("t", b"x", queue=0, flags=flags)
    assert store.get("t", 0, 0).flags == flags == records(store)[0].flag


@pytest.mark.parametrize("flags", [-1, 1 << 32, 1.0, 0.0, "1", "", None, True, False])
def test_flags_that_are_no_32_bits_are_refused(store: Store, flags: Any) -> None:
    is_refused(store, MessageIllegal, Message("t", b"x", flags=flags))
    is_refused(store, MessageIllegal, Message("t", b"x", flags=flags, born_at=5))


@pytest.mark.parametrize("born_at", [0, 1, 1_700_000_000_000, (1 << 63) - 1])
def test_a_born_time_that_is_given_is_kept(store: Store, born_at: int) -> None:
    store.put_batch([Message("t", b"x", queue=0, born_at=born_at), Message("t", b"y", queue=0)])
    assert store.get("t", 0, 0).born_at == born_at == records(store)[0].born_at
    assert store.get("t", 0, 1).born_at == store.get("t", 0, 1).stored_at


@pytest.mark.parametrize("born_at", [-1, 1 << 63, 1 << 64, 1.5, "1", True, b"1"])
def test_a_born_time_that_is_none_is_refused(store: Store, born_at: Any) -> None:
    is_refused(store, MessageIllegal, Message("t", b"x", born_at=born_at))


TIMES = [946_684_800_000, 1_700_000_000_000, 4_102_444_799_999]


@pytest.mark.parametrize("expires_at", TIMES)
def test_a_time_of_expiry_from_2000_to_2100_is_kept(store: Store, expires_at: int) -> None:
    store.put("t", b"x", queue=0, expires_at=expires_at, message_id="one")
    assert store.get("t", 0, 0).expires_at == expires_at
    assert store.find("one").raw_properties[:27] == b"__EXPIRES_AT\x01%013d\x02" % expires_at


@pytest.mark.parametrize(
    "expires_at",
    [-1, 0, TIMES[0] - 1, TIMES[2] + 1, 1 << 64, 1.7e12, float("nan"), float("inf"), "1", True],
)
def test_a_time_at_which_no_message_expires_is_refused(store: Store, expires_at: Any) -> None:
    error = is_refused(store, MessageIllegal, Message("t", b"x", expires_at=expires_at))
    assert "expires_at" in str(error)
    assert "milliseconds since the epoch" in str(error)


@pytest.mark.parametrize("expires_at", [1_700_000_000, 1_700_000_000.5])
def test_a_time_in_seconds_is_refused_with_the_unit(store: Store, expires_at: Any) -> None:
    error = is_refused(store, MessageIllegal, Message("t", b"x", expires_at=expires_at))
    assert "this looks like seconds" in str(error)


def test_a_time_of_expiry_counts_towards_the_size_of_properties(store: Store) -> None:
    value = "v" * (32_767 - len("UNIQ_KEY=one;") - 27 - len("p=;"))
    message = Message("t", b"x", 0, properties={"p": value}, message_id="one", expires_at=TIMES[1])
    is_refused(store, PropertiesTooLarge, message.__replace__(properties={"p": value + "v"}))
    assert len(store.find(store.put_batch([message])[0].message_id).raw_properties) == 32_767


def test_an_id_that_is_given_is_kept_and_found(store: Store) -> None:
    result = store.put("t", b"x", queue=0, message_id="order-17")
    assert result.message_id == "order-17" == store.get("t", 0, 0).message_id
    assert store.find("order-17").body == b"x"


def test_ids_that_are_made_are_all_different_and_have_rocketmqs_form(store: Store) -> None:
    ids = [r.message_id for r in store.put_batch([Message("t", b"") for _ in range(300)])]
    assert len(set(ids)) == 300
    assert all(len(i) == 32 and i == i.upper() and int(i, 16) for i in ids)


def test_messages_of_one_group_stay_in_one_queue(store: Store) -> None:
    groups = [f"user-{i}" for i in range(40)]
    once = {g: store.put("t", b"", message_group=g).queue for g in groups}
    again = store.put_batch([Message("t", b"", message_group=g) for g in groups])
    assert [r.queue for r in again] == [once[g] for g in groups]
    assert set(once.values()) == {0, 1, 2, 3}
    found = store.get("t", once["user-1"], 0)
    assert found.message_group in groups


def test_a_queue_that_is_named_counts_more_than_a_group(store: Store) -> None:
    assert {store.put("t", b"", queue=2, message_group=f"g{i}").queue for i in range(9)} == {2}


def test_messages_without_queue_or_group_are_spread_evenly(store: Store) -> None:
    singles = [store.put("t", b"").queue for _ in range(8)]
    together = [r.queue for r in store.put_batch([Message("t", b"") for _ in range(8)])]
    for queues in (singles, together):
        assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]
