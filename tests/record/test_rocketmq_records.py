"""Records that RocketMQ wrote: every field as RocketMQ reads it, and the same bytes back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from kvstore.core.messages import StoredMessage
from kvstore.core.names import DELAY_LEVEL
from kvstore.core.records import check_record, decode_properties
from kvstore.core.scan import scan
from kvstore.errors import RecordDamaged
from kvstore.record.hashes import tags_code
from kvstore.record.ids import parse_position_id
from kvstore.record.properties import encode_properties
from tests.fixtures import NAMES, Fixture, unpack_fixture
from tests.reference.encode import encode_record
from tests.support.decoding import decode


@pytest.fixture(scope="module", params=NAMES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return unpack_fixture(request.param, tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return unpack_fixture("classic", tmp_path_factory.mktemp("classic"))


def records(store: Fixture) -> Iterator[tuple[dict[str, Any], bytes, int]]:
    """Each message of the manifest, with the segment it is in and its index there."""
    segments = store.segments()
    for expected in store.messages:
        position = expected["physicalOffset"]
        base, raw = next(s for s in reversed(segments) if s[0] <= position)
        yield expected, raw, position - base


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def host(address: tuple[str, int]) -> tuple[object, int]:
    return ip_address(address[0]), address[1]


def host_of_manifest(text: str) -> tuple[object, int]:
    address, _, port = text.rpartition("|")
    return ip_address(address), int(port)


def test_every_field_is_as_rocketmq_reads_it(store: Fixture) -> None:
    for expected, raw, at in records(store):
        m = decode(raw, at, len(raw), position=expected["physicalOffset"])
        assert fields_of(m) == {
            "topic": expected["topic"],
            "queueId": expected["queueId"],
            "queueOffset": expected["queueOffset"],
            "physicalOffset": expected["physicalOffset"],
            "storeSize": expected["storeSize"],
            "version": {"daa320a7": 1, "daa320ab": 2}[expected["magic"]],
            "flag": expected["flag"] & 0xFFFF_FFFF,  # Java shows it with a sign
            "sysFlag": expected["sysFlag"],
            "tranType": expected["tranType"],
            "bodyCRC": expected["bodyCRC"],
            "bornTimestamp": expected["bornTimestamp"],
            "storeTimestamp": expected["storeTimestamp"],
            "bornHost": host_of_manifest(expected["bornHost"]),
            "storeHost": host_of_manifest(expected["storeHost"]),
            "reconsumeTimes": expected["reconsumeTimes"],
            "preparedTransactionOffset": expected["preparedTransactionOffset"],
            "tags": expected["tags"],
            "tagsCode": expected["tagsCode"],
            "keys": (expected["keys"] or "").split(),
            "uniqKey": expected["uniqKey"] or expected["msgId"],
            "msgId": expected["msgId"],
            "properties": expected["properties"],
            "propertiesString": expected["propertiesString"] or "",
        }


def fields_of(m: StoredMessage) -> dict[str, object]:
    return {
        "topic": m.topic,
        "queueId": m.queue,
        "queueOffset": m.offset,
        "physicalOffset": m.position,
        "storeSize": m.size,
        "version": m.version,
        "flag": m.flags,
        "sysFlag": m.system_flags,
        "tranType": m.system_flags & 0xC,
        "bodyCRC": m.body_crc,
        "bornTimestamp": m.born_at,
        "storeTimestamp": m.stored_at,
        "bornHost": host(m.born_host),
        "storeHost": host(m.store_host),
        "reconsumeTimes": m.reconsume_times,
        "preparedTransactionOffset": m.prepared_position,
        "tags": m.tag,
        "tagsCode": tags_code(m.topic, m.tag, m.properties.get(DELAY_LEVEL), m.stored_at),
        "keys": m.keys,
        "uniqKey": m.message_id,
        "msgId": m.position_id,
        "properties": m.properties,
        "propertiesString": m.raw_properties.decode(),
    }


def test_every_body_is_as_rocketmq_stores_and_delivers_it(store: Fixture) -> None:
    for expected, raw, at in records(store):
        position = expected["physicalOffset"]
        stored = decode(raw, at, len(raw), position=position, raw_body=True).body
        assert (len(stored), sha256(stored)) == (expected["bodyLen"], expected["bodySha256"])
        plain = decode(raw, at, len(raw), position=position).body
        if "plainBodySha256" in expected:
            assert len(plain) == expected["plainBodyLen"]
            assert sha256(plain) == expected["plainBodySha256"]
        else:
            assert plain == stored


def test_every_record_is_encoded_to_the_same_bytes(store: Fixture) -> None:
    for expected, raw, at in records(store):
        m = decode(raw, at, len(raw), position=expected["physicalOffset"], raw_body=True)
        again = encode_record(m)
        assert again == raw[at : at + m.size]
        assert sha256(again) == expected["rawSha256"]


def test_every_position_id_leads_back_to_its_record(store: Fixture) -> None:
    for expected, raw, at in records(store):
        m = decode(raw, at, len(raw), position=expected["physicalOffset"])
        assert parse_position_id(expected["msgId"]) == (m.raw_store_host, m.position)


def test_properties_are_encoded_to_the_same_bytes(store: Fixture) -> None:
    for expected, _, _ in records(store):
        raw = (expected["propertiesString"] or "").encode()
        assert encode_properties(decode_properties(raw)) == raw.removesuffix(b"\x02") + (
            b"\x02" if raw else b""
        )


def test_a_scan_finds_the_records_that_rocketmq_finds(store: Fixture) -> None:
    found: list[tuple[int, int]] = []
    blanks: list[dict[str, int]] = []
    stops: list[str] = []
    for base, raw in store.segments():
        scanned = scan(raw, 0, len(raw), base, 10_000)
        found += zip(scanned.positions.tolist(), scanned.sizes.tolist(), strict=True)
        at = scanned.end
        stops.append(scanned.stop)
        if scanned.stop == "blank":
            size = -check_record(raw, at, len(raw), base + at)
            assert at + size == len(raw)
            blanks.append({"physicalOffset": base + at, "size": size})
    assert found == [(m["physicalOffset"], m["storeSize"]) for m in store.messages]
    assert blanks == store.manifest.get("blanks", blanks)
    damaged = store.name in ("flipped", "torn")
    assert ("damaged" in stops) == damaged


def test_the_damage_is_found_where_it_was_done(store: Fixture) -> None:
    if "lastMessageBeforeDamage" not in store.manifest:
        return
    before = store.manifest["messagesBefore"]
    segments = store.segments()
    for expected in before[store.manifest["survive"] :]:
        position = expected["physicalOffset"]
        base, raw = next(s for s in reversed(segments) if s[0] <= position)
        at = position - base
        if sha256(raw[at : at + expected["storeSize"]]) == expected["rawSha256"]:
            assert check_record(raw, at, len(raw), position) == expected["storeSize"]
        else:
            with pytest.raises(RecordDamaged):
                decode(raw, at, len(raw), position=position)


def test_mutated_records_are_records_or_refused(classic: Fixture) -> None:
    """A byte of each record changed at each eighth place, which has every field covered."""
    for number, (expected, raw, at) in enumerate(records(classic)):
        size, position = expected["storeSize"], expected["physicalOffset"]
        record = bytearray(raw[at : at + size])
        for place in range(number % 8, min(size, 400), 8):
            before = record[place]
            record[place] ^= 1 << (number + place) % 8
            with suppress(RecordDamaged):
                m = decode(bytes(record), 0, size, position=position, raw_body=True)
                assert encode_record(m) == record
            record[place] = before


def test_a_fixture_is_unpacked_whole(classic: Fixture, tmp_path: Path) -> None:
    assert [path.name for path in classic.segment_paths] == [
        "00000000000000000000",
        "00000000000000131072",
        "00000000000000262144",
    ]
    assert unpack_fixture("torn", tmp_path).manifest["survive"] == 235
