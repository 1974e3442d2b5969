"""The bytes of the segment files, one by one, read with `struct` alone."""

from __future__ import annotations

import socket
import struct
import zlib

import pytest

from kvstore import ConfigError, Message, StoreConfig
from tests.support.clock import START_MS, VirtualClock
from tests.support.segment_files import (
    Blank,
    Raw,
    blanks,
    fill_segment,
    read_log,
    read_record,
    records,
    segment_path,
)
from tests.support.stores import SEGMENT, SMALL, Opens


def test_a_record_is_rocketmqs_layout_byte_for_byte(opens: Opens) -> None:
    store = opens(
        StoreConfig(segment_size=SEGMENT, clock=VirtualClock(), host="10.1.2.3", port=10912)
    )
    store.create_topic("orders", queues=5)
    store.put("orders", b"first", queue=3)
    result = store.put(
        "orders",
        b"body",
        queue=3,
        tag="paid",
        keys=["a", "b"],
        properties={"region": "eu"},
        message_group="g",
        flags=0x80000001,
        message_id="ID",
        born_at=12345,
    )
    properties = (
        b"UNIQ_KEY\x01ID\x02KEYS\x01a b\x02TAGS\x01paid\x02region\x01eu\x02__SHARDINGKEY\x01g\x02"
    )
    data = segment_path(store.path, 0).read_bytes()[result.position :][: result.size]
    found = read_record(data, 0)
    assert sorted(found.properties.split(b"\x02")) == sorted(properties.split(b"\x02"))
    host = bytes([10, 1, 2, 3]) + (10912).to_bytes(4, "big")
    expected = (
        struct.pack(
            ">IIIIIQQIQ",
            len(data),
            0xDAA320A7,
            zlib.crc32(b"body") & 0x7FFFFFFF,
            3,
            0x80000001,
            1,
            result.position,
            0,
            12345,
        )
        + host
        + struct.pack(">Q", START_MS)
        + host
        + struct.pack(">iQI", 0, 0, 4)
        + b"body"
        + b"\x06orders"
        + len(properties).to_bytes(2, "big")
        + found.properties
    )
    assert data == expected
    assert len(data) == 91 + 4 + 6 + len(properties)


def test_plain_records_and_flagged_ones_have_the_same_layout(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, clock=VirtualClock()))
    store.create_topic("t")
    store.put_batch([Message("t", b"a", queue=2), Message("t", b"b", queue=2)])
    store.put_batch([Message("t", b"c", queue=2), Message("t", b"d", queue=2, flags=9)])
    store.put_batch([Message("t", b"e", queue=2, born_at=8), Message("t", b"f||g", queue=2)])
    found = records(store)
    assert [r.body for r in found] == [b"a", b"b", b"c", b"d", b"e", b"f||g"]
    assert [r.offset for r in found] == list(range(6))
    assert [r.flag for r in found] == [0, 0, 0, 9, 0, 0]
    assert [r.born_at for r in found] == [START_MS] * 4 + [8, START_MS]
    assert {(r.magic, r.queue, r.system_flags, r.reconsume_times, r.prepared) for r in found} == {
        (0xDAA320A7, 2, 0, 0, 0)
    }


@pytest.mark.parametrize(
    "name", ["%RETRY%" + "g" * 120, "%RETRY%" + "g" * 121, "%DLQ%" + "g" * 250]
)
def test_topics_above_127_bytes_are_written_as_v2(opens: Opens, name: str) -> None:
    store = opens()
    store.create_topics([])
    store.create_topic(name, queues=1)
    store.create_topic("t", queues=1)
    messages = [
        Message(name, b"a", queue=0),
        Message("t", b"b", queue=0),
        Message(name, b"c", queue=0),
    ]
    sizes = [r.size for r in store.put_batch(messages)]
    found = records(store)
    second = len(name) > 127
    assert [r.magic for r in found] == [
        0xDAA320AB if second else 0xDAA320A7,
        0xDAA320A7,
        0xDAA320AB if second else 0xDAA320A7,
    ]
    assert sizes[0] == (92 if second else 91) + 1 + len(name) + len(found[0].properties)
    assert found[0].topic == name.encode()
    assert [m.body for m in store.pull(name, 0, 0).messages] == [b"a", b"c"]
    store.close()
    assert opens().get(name, 0, 1).body == b"c"


def test_an_ipv6_host_takes_20_bytes_in_records_and_ids(opens: Opens) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, host="::1", port=80))
    store.create_topic("t")
    long = "%DLQ%" + "g" * 150
    store.create_topic(long)
    store.put_batch(
        [
            Message("t", b"a", queue=0),
            Message(long, b"b", queue=0, flags=1, born_at=9),
            Message("t", b"c", queue=0, tag="x"),
        ]
    )
    host = socket.inet_pton(socket.AF_INET6, "::1") + (80).to_bytes(4, "big")
    for raw in records(store):
        assert raw.system_flags == 0x30
        assert (raw.born_host, raw.store_host) == (host, host)
    found = store.get("t", 0, 1)
    assert found.store_host == found.born_host == ("::1", 80)
    assert len(found.message_id) == len(found.position_id) == 56
    assert store.find(found.position_id.lower()) == store.find(found.message_id) == found
    assert store.verify().problems == []
    store.close()
    again = opens()
    assert again.get("t", 0, 1) == found
    again.put("t", b"d", queue=0)
    assert [m.body for m in again.pull("t", 0, 0).messages] == [b"a", b"c", b"d"]


def test_the_crc_over_the_whole_record_is_its_last_property(opens: Opens) -> None:
    config = StoreConfig(segment_size=SEGMENT, property_crc=True, check_property_crc=True)
    store = opens(config)
    store.create_topic("t")
    messages = [Message("t", b"a" * i, queue=0, tag="x", properties={"p": "q"}) for i in range(300)]
    sizes = [r.size for r in store.put_batch(messages)]
    base, data = -1, b""
    for raw in records(store):
        if raw.position // SEGMENT != base:
            base = raw.position // SEGMENT
            data = segment_path(store.path, base * SEGMENT).read_bytes()
        at = raw.position - base * SEGMENT
        whole = data[at : at + raw.size]
        digits = f"{zlib.crc32(whole[:-20]) & 0x7FFFFFFF:010d}"[::-1]
        assert whole[-20:] == b"__CRC32#\x01" + digits.encode() + b"\x02"
    assert [r.size for r in records(store)] == sizes
    assert store.get("t", 0, 7).user_properties == {"p": "q"}
    store.close()
    again = opens(config)
    assert again.recovery.damage == []
    assert again.bounds("t", 0) == (0, 300)


def test_a_store_that_could_not_read_its_own_puts_is_not_opened_to_write(opens: Opens) -> None:
    opens().close()
    demanding = StoreConfig(segment_size=SEGMENT, check_property_crc=True)
    with pytest.raises(ConfigError, match="property_crc=True as well"):
        opens(demanding)
    opens(demanding, read_only=True).close()
    opens(StoreConfig(segment_size=SEGMENT)).close()


@pytest.mark.parametrize("leave", [8, 9, 10, 91, 120, 141])
def test_what_is_left_of_a_segment_becomes_a_blank_record(opens: Opens, leave: int) -> None:
    """A record of n bytes needs n + 8: 8 bytes are always left for the blank one."""
    store = opens()
    store.create_topic("t")
    fill_segment(store, leave=leave)
    size = store.put("t", b"", queue=0).size
    assert leave < size + 8
    assert blanks(store) == [Blank(leave, SEGMENT - leave)]
    assert records(store)[-1].position == SEGMENT
    assert store.bounds("t", 0) == (0, 3)
    data = segment_path(store.path, 0).read_bytes()
    assert data[-leave:] == struct.pack(">II", leave, 0xCBD43194) + bytes(leave - 8)
    store.close()
    again = opens()
    assert again.recovery.damage == []
    assert [r.offset for r in records(again)] == [0, 1, 2]


@pytest.mark.parametrize("mode", ["mapped", "staged"])
def test_a_record_that_leaves_exactly_8_bytes_stays_in_its_segment(opens: Opens, mode: str) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, write_mode=mode))  # type: ignore[arg-type]  # one of the two
    store.create_topic("t")
    size = store.put("t", b"", queue=0).size
    fill_segment(store, leave=size + 8)
    assert store.put("t", b"", queue=0).position == SEGMENT - size - 8
    assert store.put("t", b"", queue=0).position == SEGMENT
    store.flush()
    assert blanks(store) == [Blank(8, SEGMENT - 8)]
    fill_segment(store, leave=size + 7)
    assert store.put("t", b"", queue=0).position == 2 * SEGMENT
    store.flush()
    assert blanks(store)[1] == Blank(size + 7, 2 * SEGMENT - size - 7)
    store.close()
    again = opens()
    assert again.recovery.damage == []
    assert again.verify().problems == []


def test_sealing_leaves_a_blank_record_and_an_empty_segment_is_not_sealed(opens: Opens) -> None:
    store = opens()
    store.seal()
    assert store.stats().end_position == 0
    store.create_topic("t")
    size = store.put("t", b"", queue=0).size
    store.seal()
    store.seal()
    assert list(read_log(store)) == [records(store)[0], Blank(SEGMENT - size, size)]
    assert store.stats().end_position == SEGMENT
    assert store.put("t", b"", queue=0).position == SEGMENT


def test_behind_the_end_of_the_log_is_nothing_but_zeros(opens: Opens) -> None:
    store = opens()
    store.create_topic("t")
    store.put_batch([Message("t", b"x" * 900, queue=0) for _ in range(100)])
    end = store.stats().end_position
    data = segment_path(store.path, end - end % SEGMENT).read_bytes()
    assert not any(data[end % SEGMENT :])


def test_positions_and_offsets_in_records_are_those_of_the_results(opens: Opens) -> None:
    store = opens(SMALL)
    store.create_topic("t", queues=3)
    results = []
    for i in range(30):
        results += store.put_batch(
            [Message("t", b"z" * (i * 13 % 701), queue=j % 3) for j in range(i)]
        )
    found = records(store)
    assert [(r.position, r.offset, r.queue, r.size) for r in found] == [
        (r.position, r.offset, r.queue, r.size) for r in results
    ]
    assert isinstance(found[0], Raw)
