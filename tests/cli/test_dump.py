"""`kvmq dump`: files are read by themselves, all in them is shown, damage is passed over."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import kvstore
from kvstore.cli import kvmq as command
from tests.cli.conftest import Kvmq, Ran
from tests.fixtures import NAMES, Fixture
from tests.rocketmq.logs import NOW, SEGMENT, make_store, record, segment

Stores = Callable[[str], Fixture]
GOOD, DAMAGED, USAGE = 0, 1, 2
LOST = {"torn": {165216}}
"""Whole records that RocketMQ can't reach and a dump shows."""


def of_kind(ran: Ran, kind: str) -> list[dict[str, Any]]:
    return [line for line in ran.lines if line["kind"] == kind]


def host(text: str) -> str:
    """A host as a manifest has it, as `dump` has it."""
    import ipaddress

    address, port = text.split("|")
    parsed = ipaddress.ip_address(address)
    return f"{parsed}:{port}" if parsed.version == 4 else f"[{parsed}]:{port}"


def body_of(line: dict[str, Any]) -> bytes:
    text: str = line["body"]
    return base64.b64decode(text) if line["body_encoding"] == "base64" else text.encode()


# -- records


@pytest.mark.parametrize("name", NAMES)
def test_every_record_of_a_store_is_shown_with_all_its_fields(
    name: str, kvmq: Kvmq, stores: Stores
) -> None:
    fixture = stores(name)
    ran = kvmq("dump", fixture.store, "--json")
    assert ran.code == (DAMAGED if name in ("flipped", "torn") else GOOD)
    shown = {line["position"]: line for line in of_kind(ran, "record")}
    assert set(shown) - LOST.get(name, set()) == {m["physicalOffset"] for m in fixture.messages}
    for m in fixture.messages:
        line = shown[m["physicalOffset"]]
        expected = {
            "topic": m["topic"], "queue": m["queueId"], "offset": m["queueOffset"],
            "size": m["storeSize"], "magic": f"0x{m['magic']}", "body_crc": m["bodyCRC"],
            "flags": m["flag"] & 0xFFFF_FFFF, "system_flags": m["sysFlag"],
            "born_at": m["bornTimestamp"], "stored_at": m["storeTimestamp"],
            "born_host": host(m["bornHost"]), "store_host": host(m["storeHost"]),
            "reconsume_times": m["reconsumeTimes"],
            "prepared_position": m["preparedTransactionOffset"],
            "body_stored_size": m["bodyLen"], "tag": m["tags"], "tags_code": m["tagsCode"],
            "message_id": m["uniqKey"], "position_id": m["msgId"],
            "keys": (m["keys"] or "").split(), "properties": m["properties"],
            "properties_size": len(m["propertiesString"].encode()),
            "body_codec": m["compression"].lower() if m.get("compression") else None,
            "body_size": m.get("plainBodyLen", m["bodyLen"]),
        }  # fmt: skip
        assert {field: line[field] for field in expected} == expected
        digest = hashlib.sha256(body_of(line)).hexdigest()
        assert digest == m.get("plainBodySha256", m["bodySha256"])


def test_blank_records_and_the_unwritten_end_are_shown(kvmq: Kvmq, stores: Stores) -> None:
    classic = stores("classic")
    ran = kvmq("dump", classic.store / "commitlog", "--json")
    blanks = [{"physicalOffset": b["position"], "size": b["size"]} for b in of_kind(ran, "blank")]
    assert blanks == classic.manifest["blanks"]
    (end,) = of_kind(ran, "end")
    assert end["position"] == classic.manifest["maxPhyOffset"]
    assert end["position"] + end["size"] == 3 * 131_072


def test_numbers_come_with_their_meaning(kvmq: Kvmq, tmp_path: Path) -> None:
    store = make_store(tmp_path, [segment(0, [])])
    log = store / "commitlog" / ("0" * 20)
    v6 = record(0, system_flags=0x2 | 0xC | 0x300 | 0x80000, properties=b"TAGS\x01a\x02x\x01y\x02")
    log.write_bytes(v6 + bytes(SEGMENT - len(v6)))
    (line,) = of_kind(kvmq("dump", log, "--json"), "record")
    assert line["system_flag_names"] == ["multi-tag", "rollback", "codec-zlib", "unknown-0x80000"]
    assert line["transaction"] == "rollback"
    assert line["stored_at_iso"] == "2026-11-18T11:06:40.000Z"
    assert (line["tag"], line["tags_code"]) == ("a", 97)


def test_people_get_a_page_for_each_record(kvmq: Kvmq, stores: Stores) -> None:
    classic = stores("classic")
    ran = kvmq("dump", classic.store, "--limit", 1)
    assert ran.code == GOOD
    m = classic.messages[0]
    for text in (
        "record at 0: 221 bytes", "topic", m["topic"], "1795238597560 (2026-11-21T",
        m["bornHost"].replace("|", ":"), m["uniqKey"], m["msgId"], "    user", "u43", "钥匙2",
        f"{m['bodyLen']} bytes, CRC {m['bodyCRC']:#010x}",
    ):  # fmt: skip
        assert text in ran.out
    assert "\x1b" not in ran.out, "no colours into a pipe"
    assert ran.err.startswith("1 records")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("grün\nzwei".encode(), ["    grün\n    zwei\n"]),
        (b"\xff\x00\x01\x02\x03", ["    ff 00010203\n"]),
        (b"\x1b[2J", ["    1b5b324a\n"]),
        ("a\u202eb".encode(), ["    a\\u202eb\n"]),
        (b"", ["body                0 bytes"]),
    ],
)
def test_a_body_is_text_where_it_can_be_shown_and_else_hex(
    body: bytes, shown: list[str], kvmq: Kvmq, tmp_path: Path
) -> None:
    store = make_store(tmp_path, [segment(0, [body])])
    out = kvmq("dump", store).out
    for text in shown:
        assert text in out


@pytest.mark.parametrize(("size", "text"), [(3, "grü"), (2, "gr"), (100, "grün"), (0, "")])
def test_a_body_is_cut_between_characters(size: int, text: str, kvmq: Kvmq, tmp_path: Path) -> None:
    # "ü" is bytes 2 and 3: cut at 3 bytes it is half a character.
    store = make_store(tmp_path, [segment(0, ["grün".encode()])])
    size = size + 1 if size == 3 else size
    (line,) = of_kind(kvmq("dump", store, "--json", "--body", size), "record")
    assert (line["body"], line["body_encoding"]) == (text, "text")
    assert line["body_truncated"] == (size < 5)
    (half,) = of_kind(kvmq("dump", store, "--json", "--body", 3), "record")
    assert half["body"] == "gr"
    assert ("more with --body" in kvmq("dump", store, "--body", size).out) == (size < 5)


def test_a_body_that_cant_be_decompressed_is_marked_and_shown_as_stored(
    kvmq: Kvmq, tmp_path: Path
) -> None:
    data = record(0, b"no zstd frame", system_flags=0x201)
    store = make_store(tmp_path, [data + bytes(SEGMENT - len(data))])
    ran = kvmq("dump", store, "--json")
    assert ran.code == DAMAGED
    (line,) = of_kind(ran, "record")
    assert (line["body_codec"], line["body_size"]) == ("zstd", None)
    assert "decompressed" in line["body_problem"]
    assert line["body"] == "no zstd frame"
    assert "zstd, damaged" in kvmq("dump", store).out


# -- damage


@pytest.mark.parametrize(
    ("name", "damaged"), [("flipped", [(165421, 205)]), ("torn", [(165011, 205), (165421, 36)])]
)
def test_damage_is_marked_with_its_place_reason_and_size(
    name: str, damaged: list[tuple[int, int]], kvmq: Kvmq, stores: Stores
) -> None:
    ran = kvmq("dump", stores(name).store, "--json")
    found = of_kind(ran, "damage")
    assert [(line["position"], line["size"]) for line in found] == damaged
    assert all(str(line["position"]) in line["reason"] for line in found)
    page = kvmq("dump", stores(name).store, "--from", 165000).out
    assert f"DAMAGE at {damaged[0][0]}, 205 bytes skipped" in page


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"hello, I am no log", "too few"),
        (b"\x00\x01", "too few"),
        (segment(0, [b"a", b"b" * 9])[:190], "size should be"),
        (segment(0, [b"a", b"b"])[:186], "ends behind a record"),
    ],
)
def test_a_file_that_is_no_whole_log_gets_a_clear_word(
    data: bytes, reason: str, kvmq: Kvmq, tmp_path: Path
) -> None:
    path = tmp_path / "commitlog" / ("0" * 20)
    path.parent.mkdir()
    path.write_bytes(data)
    ran = kvmq("dump", path, "--json")
    assert ran.code == DAMAGED
    assert reason in of_kind(ran, "damage")[-1]["reason"]


def test_a_missing_file_and_one_of_another_size_are_marked_in_a_folder(
    kvmq: Kvmq, tmp_path: Path
) -> None:
    data = [segment(n * SEGMENT, [b"x"], full=True) for n in range(4)]
    store = make_store(tmp_path, data)
    (store / "commitlog" / f"{SEGMENT:020}").unlink()
    short = store / "commitlog" / f"{2 * SEGMENT:020}"
    short.write_bytes(data[2][:2000])
    ran = kvmq("dump", store, "--json")
    assert ran.code == DAMAGED
    assert [line["position"] for line in of_kind(ran, "record")] == [0, 2 * SEGMENT, 3 * SEGMENT]
    hole, cut, zeros, size = of_kind(ran, "damage")
    assert (hole["position"], hole["size"]) == (SEGMENT, SEGMENT)
    assert "blank record's size" in cut["reason"]
    assert "the log goes on behind" in zeros["reason"]
    assert "has 2000 bytes" in size["reason"]


def test_zeros_are_damage_when_the_log_goes_on_in_a_later_file(kvmq: Kvmq, tmp_path: Path) -> None:
    data = [segment(0, [b"x"]), segment(SEGMENT, [b"y"]), bytes(SEGMENT)]
    ran = kvmq("dump", make_store(tmp_path, data), "--json")
    kinds = [line["kind"] for line in ran.lines]
    assert kinds == ["record", "damage", "record", "end", "end"]
    assert ran.code == DAMAGED


def test_a_renamed_file_is_read_at_the_place_its_records_name(
    kvmq: Kvmq, stores: Stores, tmp_path: Path
) -> None:
    source = stores("classic").segment_paths[1]
    shutil.copy(source, tmp_path / "copy.bin")
    ran = kvmq("dump", tmp_path / "copy.bin", "--json")
    assert ran.code == GOOD
    assert len(of_kind(ran, "record")) == 170
    misnamed = tmp_path / f"{5 * 131_072:020}"
    shutil.copy(source, misnamed)
    ran = kvmq("dump", misnamed, "--json")
    assert ran.code == DAMAGED
    assert len(of_kind(ran, "record")) == 170
    assert "misnamed" in of_kind(ran, "damage")[0]["reason"]


# -- choosing


def test_a_position_shows_the_one_record_there(kvmq: Kvmq, stores: Stores) -> None:
    classic = stores("classic")
    m = classic.messages[200]
    for place in (classic.store, classic.segment_paths[1]):
        ran = kvmq("dump", place, "--position", m["physicalOffset"], "--json")
        assert (ran.code, len(ran.lines)) == (GOOD, 1)
        assert ran.lines[0]["position_id"] == m["msgId"]


def test_a_position_inside_a_record_shows_that_record_and_says_so(
    kvmq: Kvmq, stores: Stores
) -> None:
    classic = stores("classic")
    at = classic.messages[200]["physicalOffset"]
    ran = kvmq("dump", classic.store, "--position", at + 7, "--json")
    assert [line["kind"] for line in ran.lines] == ["record", "damage"]
    assert ran.lines[0]["position"] == at
    assert ran.code == DAMAGED


def test_a_position_no_file_has_is_not_found(kvmq: Kvmq, stores: Stores) -> None:
    ran = kvmq("dump", stores("classic").store, "--position", 10**9)
    assert (ran.code, ran.out) == (1, "")
    assert "no file" in ran.err


def test_from_and_limit_choose_a_part_of_a_log(kvmq: Kvmq, stores: Stores) -> None:
    classic = stores("classic")
    at = classic.messages[150]["physicalOffset"]
    ran = kvmq("dump", classic.store, "--from", at, "--limit", 5, "--json")
    found = [line["position"] for line in of_kind(ran, "record")]
    assert found == [m["physicalOffset"] for m in classic.messages[150:155]]
    assert kvmq("dump", classic.store, "--limit", 0, "--json").lines == []


def test_topic_and_queue_choose_records_of_a_log(kvmq: Kvmq, stores: Stores) -> None:
    classic = stores("classic")
    ran = kvmq("dump", classic.store, "--topic", "TopicTest", "--queue", 1, "--json")
    expected = [
        m["physicalOffset"]
        for m in classic.messages
        if (m["topic"], m["queueId"]) == ("TopicTest", 1)
    ]
    assert [line["position"] for line in of_kind(ran, "record")] == expected
    assert kvmq("dump", classic.store, "--topic", "nope").code == 1


@pytest.mark.parametrize("name", ["classic", "rocksdb"])
def test_every_queue_offset_is_found_by_looking_through_the_log(
    name: str, kvmq: Kvmq, stores: Stores
) -> None:
    fixture = stores(name)
    queue = fixture.manifest["consumeQueue"]["TopicTest"]["0"]
    for offset, position, *_ in queue["entries"]:
        words = ("--topic", "TopicTest", "--queue", 0, "--offset", offset, "--json")
        ran = kvmq("dump", fixture.store, *words)
        assert [line["position"] for line in ran.lines] == [position]


def test_records_that_are_in_no_queue_are_not_found_by_offset(kvmq: Kvmq, tmp_path: Path) -> None:
    prepared = record(0, system_flags=0x4)
    real = record(len(prepared), b"real")
    data = prepared + real
    store = make_store(tmp_path, [data + bytes(SEGMENT - len(data))])
    words = ("--topic", "T", "--queue", 0, "--offset", 0, "--json")
    assert [line["body"] for line in kvmq("dump", store, *words).lines] == ["real"]


# -- consume queues and other files


@pytest.mark.parametrize("name", ["classic"])
def test_queue_files_are_shown_entry_by_entry(name: str, kvmq: Kvmq, stores: Stores) -> None:
    fixture = stores(name)
    for topic, queues in fixture.manifest["consumeQueueFiles"].items():
        for queue, expected in queues.items():
            ran = kvmq("dump", fixture.store / "consumequeue" / topic / queue, "--json")
            assert ran.code == GOOD
            entries = of_kind(ran, "entry")
            fields = ("offset", "position", "size", "tags_code")
            assert [[entry[field] for field in fields] for entry in entries] == expected


def test_an_offset_of_a_queue_file_is_followed_into_the_log(
    kvmq: Kvmq, stores: Stores, tmp_path: Path
) -> None:
    classic = stores("classic")
    path = classic.store / "consumequeue" / "TopicTest" / "2" / ("0" * 20)
    expected = classic.manifest["consumeQueueFiles"]["TopicTest"]["2"]
    for offset, position, size, tags_code in expected:
        ran = kvmq("dump", path, "--offset", offset, "--json")
        assert ran.code == GOOD
        entry, line = ran.lines
        assert (entry["kind"], entry["tags_code"]) == ("entry", tags_code)
        assert (line["topic"], line["queue"], line["offset"]) == ("TopicTest", 2, offset)
        assert (line["position"], line["size"], line["tags_code"]) == (position, size, tags_code)
    moved = tmp_path / path.name
    shutil.copy(path, moved)
    log = ("--commitlog", classic.store / "commitlog")
    assert len(kvmq("dump", moved, "--offset", 3, *log, "--json").lines) == 2
    assert len(kvmq("dump", path.parent, "--offset", 3, "--json").lines) == 2
    alone = kvmq("dump", moved, "--offset", 3, "--json", "--kind", "queue")
    assert (alone.code, len(alone.lines)) == (GOOD, 1)
    assert "--commitlog" in alone.err
    assert kvmq("dump", path, "--offset", 10**6).code == 1


def test_an_entry_that_the_log_contradicts_is_marked(
    kvmq: Kvmq, stores: Stores, tmp_path: Path
) -> None:
    torn = stores("torn")
    path = torn.store / "consumequeue" / "TopicTest" / "0" / ("0" * 20)
    ran = kvmq("dump", path, "--offset", 24, "--json")
    assert ran.code == DAMAGED
    assert [line["kind"] for line in ran.lines][:2] == ["entry", "damage"]
    wrong = tmp_path / path.name
    data = bytearray(path.read_bytes())
    data[11] += 1
    wrong.write_bytes(data)
    log = ("--commitlog", torn.store / "commitlog")
    ran = kvmq("dump", wrong, "--offset", 0, *log, "--json")
    assert ran.code == DAMAGED
    assert "in the log there are" in ran.lines[-1]["reason"]


def test_unused_parts_of_a_queue_file_are_shown_and_broken_ones_marked(
    kvmq: Kvmq, tmp_path: Path
) -> None:
    path = tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)
    path.parent.mkdir(parents=True)
    entry = (91).to_bytes(8, "big") + (91).to_bytes(4, "big") + bytes(8)
    path.write_bytes(bytes(20) + entry + b"\xff" * 20 + b"half")
    ran = kvmq("dump", path, "--json")
    assert [line["kind"] for line in ran.lines] == ["unused", "entry", "damage", "damage"]
    assert ran.code == DAMAGED
    assert "1 unwritten units at byte 0" in kvmq("dump", path).out


def test_entries_can_be_chosen_by_from_and_limit(kvmq: Kvmq, stores: Stores) -> None:
    folder = stores("classic").store / "consumequeue" / "TopicTest" / "0"
    ran = kvmq("dump", folder, "--from", 2, "--limit", 3, "--json")
    assert [entry["offset"] for entry in of_kind(ran, "entry")] == [2, 3, 4]


def test_index_files_and_checkpoints_are_shown(kvmq: Kvmq, stores: Stores) -> None:
    classic = stores("classic")
    expected = classic.manifest["indexFiles"][0]
    ran = kvmq("dump", classic.store / "index" / expected["file"], "--json")
    (header,) = of_kind(ran, "index")
    assert header["end_position"] == expected["endPhyOffset"]
    fields = ("number", "key_hash", "position", "seconds", "previous")
    items = [[item[field] for field in fields] for item in of_kind(ran, "item")]
    assert items == expected["items"]
    (line,) = kvmq("dump", classic.store / "checkpoint", "--json").lines
    assert line["log_time"] == classic.manifest["checkpoint"]["physicMsgTimestamp"]


# -- usage


def test_files_that_are_nothing_of_the_kind_are_wrong_usage(
    kvmq: Kvmq, stores: Stores, tmp_path: Path
) -> None:
    store = stores("classic").store
    (tmp_path / "text").write_text("hello")
    (tmp_path / "none").touch()
    for words in (
        (tmp_path / "text",), (tmp_path / "none",), (tmp_path,), (tmp_path / "missing",), (),
        (store / "checkpoint", "--position", 0), (store / "commitlog", "--offset", 0),
        (store, "--kind", "what"), (store, "--limit", -1),
        (store / "consumequeue" / "TopicTest" / "0", "--topic", "T"),
    ):  # fmt: skip
        ran = kvmq("dump", *words)
        assert (ran.code, ran.out) == (USAGE, "")
        assert "Traceback" not in ran.err
    assert kvmq("dump", tmp_path / "text", "--kind", "log").code == DAMAGED
    assert kvmq("dump", tmp_path / "text", "--kind", "queue").code == DAMAGED
    for kind in ("index", "checkpoint"):
        assert kvmq("dump", tmp_path / "text", "--kind", kind).code == 1


def dumped(path: Path, *words: str) -> int:
    """The exit code of a dump; what it raised, if it raised."""
    result = CliRunner().invoke(command, ["dump", str(path), *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code


@given(data=st.binary(max_size=500), kind=st.sampled_from([None, "log", "queue", "batch-queue"]))
def test_a_dump_of_any_bytes_never_raises(
    data: bytes, kind: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / ("0" * 20)
    path.write_bytes(data)
    words = ("--kind", kind) if kind else ()
    assert dumped(path, *words) in (GOOD, DAMAGED, USAGE)
    assert dumped(path, "--json", *words) in (GOOD, DAMAGED, USAGE)


@settings(deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=50) | st.text(max_size=20).map(str.encode), max_size=6),
    junk=st.lists(st.tuples(st.integers(0, 900), st.binary(min_size=1, max_size=30)), max_size=4),
    length=st.integers(0, SEGMENT),
    words=st.sampled_from([(), ("--json",), ("--position", "120"), ("--topic", "T")]),
)
def test_a_dump_of_a_mutated_segment_never_raises(
    bodies: list[bytes],
    junk: list[tuple[int, bytes]],
    length: int,
    words: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = bytearray(segment(0, bodies, stored_at=NOW))
    for at, what in junk:
        data[at : at + len(what)] = what
    path = tmp_path_factory.getbasetemp() / "commitlog" / ("0" * 20)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data[:length])
    assert dumped(path, *words) in (GOOD, DAMAGED, USAGE)
    assert dumped(path.parent, *words) in (GOOD, DAMAGED, USAGE)


def test_a_store_of_kvmqs_own_is_dumped_like_any_other(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("dump", folder, "--json")
    assert ran.code == GOOD
    records = of_kind(ran, "record")
    assert [line["body"] for line in records[:40]] == [f"order {n}" for n in range(40)]
    assert (records[40]["body_encoding"], body_of(records[40])) == ("base64", b"\xff\x00")
    got = kvmq("get", folder, "orders", "--offset", 7, "--json").json
    words = ("--topic", "orders", "--queue", 0, "--offset", 7, "--json")
    (line,) = kvmq("dump", folder, *words).lines
    for field in ("position", "message_id", "position_id", "tag", "keys", "stored_at"):
        assert line[field] == got[field]


def test_a_record_that_contradicts_the_crc_over_all_of_it_is_shown_and_marked(
    kvmq: Kvmq, tmp_path: Path
) -> None:
    config = kvstore.StoreConfig(segment_size=1 << 16, property_crc=True)
    with kvstore.open(tmp_path / "store", config) as store:
        store.create_topic("t", queues=1)
        placed = [store.put("t", b"body", properties={"region": "eu"}) for _ in range(3)]
    assert kvmq("dump", tmp_path / "store", "--json").code == GOOD
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(b"region", placed[1].position)] ^= 1
    log.write_bytes(data)
    ran = kvmq("dump", tmp_path / "store", "--json")
    assert ran.code == DAMAGED
    assert len(of_kind(ran, "record")) == 3
    (damage,) = of_kind(ran, "damage")
    assert damage["position"] == placed[1].position
    assert "CRC property" in damage["reason"]
