"""Verify: everything that is wrong is listed, with where it is; the rest is still looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvstore import Message, Problem, RecordDamaged, Retention, Store, StoreConfig
from kvstore.index.keys import MESSAGE_KEYS, PLACES, RUNS, segment_range
from kvstore.index.runs import HEADER
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.segment_files import segment_path
from tests.support.stores import SEGMENT, SMALL, Opens


@pytest.fixture
def filled(store: Store) -> Store:
    """Three segments of messages in two queues, all checkpointed."""
    for part in range(3):
        store.put_batch(
            [
                Message("t", bytes([65 + part]) * 500, queue=i % 2, keys=[f"k{i % 5}"])
                for i in range(40)
            ]
        )
        if part < 2:
            store.seal()
    store.checkpoint()
    return store


def test_a_store_that_is_well_has_no_problems(filled: Store) -> None:
    report = filled.verify()
    assert (report.problems, report.problems_found) == ([], 0)
    assert (report.records, report.entries, report.keys, report.segments) == (120, 120, 240, 3)
    assert report.bytes == sum(filled.read_at(p).size for p in _positions(filled))


def _positions(store: Store) -> list[int]:
    return [m.position for q in (0, 1) for m in store.pull("t", q, 0, 1000).messages]


def flip(store: Store, position: int) -> None:
    path = segment_path(store.path, position - position % SEGMENT)
    with path.open("r+b") as file:
        file.seek(position % SEGMENT)
        byte = file.read(1)[0]
        file.seek(position % SEGMENT)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("at", [0, 4, 8, 12, 30, 85, 88, 300, 587, 588, 591])
def test_a_flipped_byte_is_found_where_it_is_and_the_rest_is_looked_at(
    filled: Store, at: int
) -> None:
    """Size, magic, CRC, queue, position, body length, body, lengths of topic and properties."""
    victim = filled.get("t", 1, 30)
    flip(filled, victim.position + at)
    report = filled.verify()
    assert any(p.position == victim.position for p in report.problems), report.problems
    assert {p.position for p in report.problems} <= {victim.position}
    assert report.records == 119 or at == 12
    assert report.segments == 3


def test_a_damaged_record_is_found_after_reopening_too(filled: Store, opens: Opens) -> None:
    victim = filled.get("t", 0, 3)
    filled.close()
    flip(filled, victim.position + 100)
    for read_only in (True, False):
        store = opens(read_only=read_only)
        found = store.verify()
        assert {p.position for p in found.problems} == {victim.position}
        store.close()


def rows(store: Store, family: str) -> list[tuple[bytes, bytes]]:
    return list(inside.families(store).rows(family, b""))


def change(store: Store, family: str, key: bytes, value: bytes | None) -> list[Problem]:
    """Change a row behind the store's back; returns what `verify` says then."""
    families = inside.families(store)
    batch = families.batch()
    if value is None:
        batch.delete(family, key)
    else:
        batch.put(family, key, value)
    families.write(batch)
    report = store.verify()
    assert report.problems_found == len(report.problems)
    assert report.segments == 3
    assert report.records == 120
    return report.problems


@pytest.mark.parametrize("number", [0, 3, 5])
def test_a_run_that_is_missing_is_found_entry_by_entry(filled: Store, number: int) -> None:
    found = change(filled, RUNS, rows(filled, RUNS)[number][0], None)
    assert len([p for p in found if p.kind == "index"]) >= 20
    assert {(p.topic, p.queue) for p in found} == {("t", number % 2)}


@pytest.mark.parametrize("value", [b"", b"x", bytes(26), bytes(200), b"\xff" * 60])
def test_a_run_of_garbage_is_found(filled: Store, value: bytes) -> None:
    found = change(filled, RUNS, rows(filled, RUNS)[2][0], value)
    assert any("run" in p.message for p in found)
    assert any("no entry" in p.message for p in found)


@pytest.mark.parametrize("number", [1, 4])
def test_a_run_of_other_entries_is_found(filled: Store, number: int) -> None:
    there = rows(filled, RUNS)
    found = change(filled, RUNS, there[number][0], there[number - 1][1])
    assert found
    assert {p.kind for p in found} == {"index"}


@pytest.mark.parametrize("field", [4, 5, 6, 7])
def test_a_run_with_a_wrong_position_size_tag_or_time_is_found(filled: Store, field: int) -> None:
    key, value = rows(filled, RUNS)[3]
    head = list(HEADER.unpack_from(value))
    head[field] += 1
    assert change(filled, RUNS, key, HEADER.pack(*head) + value[HEADER.size :])


def test_a_run_at_a_wrong_offset_is_found(filled: Store) -> None:
    key, value = rows(filled, RUNS)[3]
    wrong = key[:-8] + (int.from_bytes(key[-8:], "big") + 1).to_bytes(8, "big")
    change(filled, RUNS, wrong, value)
    assert change(filled, RUNS, key, None)


def test_a_run_twice_is_found(filled: Store) -> None:
    key, value = rows(filled, RUNS)[3]
    twice = key[:-8] + (int.from_bytes(key[-8:], "big") + 5).to_bytes(8, "big")
    assert change(filled, RUNS, twice, value)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_block_of_keys_that_is_missing_is_found(filled: Store, number: int) -> None:
    there = rows(filled, MESSAGE_KEYS)
    found = change(filled, MESSAGE_KEYS, there[number][0], None)
    assert found
    assert all("key" in p.message for p in found)


@pytest.mark.parametrize(
    "value", [b"", b"x", bytes(5), b"\x11" + bytes(4), b"\xff" * 50, b"\x00\xff\xff\xff\xff"]
)
def test_a_block_of_garbage_is_found(filled: Store, value: bytes) -> None:
    found = change(filled, MESSAGE_KEYS, rows(filled, MESSAGE_KEYS)[1][0], value)
    assert any("key" in p.message for p in found)


@pytest.mark.parametrize("number", range(6))
def test_a_location_that_is_missing_is_found(filled: Store, number: int) -> None:
    there = rows(filled, PLACES)
    assert len(there) == 6
    found = change(filled, PLACES, there[number][0], None)
    assert len(found) == 1
    assert "location" in found[0].message


@pytest.mark.parametrize("number", range(6))
def test_a_place_that_names_another_segment_is_found(filled: Store, number: int) -> None:
    key, value = rows(filled, PLACES)[number]
    segment = int.from_bytes(value[:4], "big")
    assert change(filled, PLACES, key, ((segment + 1) % 3).to_bytes(4, "big") + value[4:])


@pytest.mark.parametrize("number", range(6))
def test_a_place_that_says_another_time_is_found(filled: Store, number: int) -> None:
    key, value = rows(filled, PLACES)[number]
    time = int.from_bytes(value[4:], "big")
    (problem,) = change(filled, PLACES, key, value[:4] + (time + 1).to_bytes(8, "big"))
    assert f"first store time {time + 1}" in problem.message


def test_zeros_where_records_should_be_are_told_as_that(filled: Store) -> None:
    victim = filled.get("t", 0, 10)
    path = segment_path(filled.path, 0)
    with path.open("r+b") as file:
        file.seek(victim.position)
        file.write(bytes(SEGMENT - victim.position))
    found = [p for p in filled.verify().problems if p.kind == "record"]
    assert [p.position for p in found] == [victim.position]
    assert "zero" in found[0].message


def test_all_problems_are_counted_though_only_the_first_are_listed(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.engine.verification.verify._PROBLEMS_MAX", 5)
    families = inside.families(filled)
    batch = families.batch()
    batch.delete(RUNS, rows(filled, RUNS)[0][0])
    families.write(batch)
    report = filled.verify()
    assert len(report.problems) == 5
    assert report.problems_found >= 20


def test_what_retention_takes_while_it_is_looked_at_is_no_problem(opens: Opens) -> None:
    config = StoreConfig(
        segment_size=SEGMENT, clock=VirtualClock(), retention=Retention(max_bytes=1),
        delete_interval=0.0,
    )  # fmt: skip
    store = opens(config)
    store.create_topic("t", 1)
    for _ in range(5):
        store.put_batch([Message("t", bytes(500), queue=0, keys=["k"]) for _ in range(20)])
        store.seal()
    gone = []

    def retain(*_: object) -> None:
        gone.append(store.apply_retention())

    report = store.verify(retain)
    assert gone[0] >= 4
    assert (report.problems, report.problems_found) == ([], 0)


def test_what_is_put_and_checkpointed_while_it_is_looked_at_is_no_problem(filled: Store) -> None:
    def go_on(*_: object) -> None:
        filled.put("t", b"more", queue=0, keys=["k"])
        filled.checkpoint()

    report = filled.verify(go_on)
    assert (report.problems, report.problems_found) == ([], 0)
    assert report.records == report.entries == 120


def test_a_topic_that_is_deleted_while_it_is_looked_at_is_no_problem(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.create_topic("u", 1)
    filled.put_batch([Message("u", b"%d" % n, keys=["k"]) for n in range(10)])
    families, doomed = inside.families(filled), ["u"]
    read, where = families.rows, segment_range(2, 3)

    def rows(name: str, *asked: Any) -> Iterator[tuple[bytes, bytes]]:
        if name == RUNS and asked == where and doomed:
            filled.delete_topic(doomed.pop())  # its records were read, its entries were not
        return read(name, *asked)

    monkeypatch.setattr(families, "rows", rows)
    report = filled.verify()
    assert (doomed, report.problems, report.problems_found) == ([], [], 0)


def test_a_place_too_many_is_found(filled: Store) -> None:
    key, value = rows(filled, PLACES)[0]
    assert change(filled, PLACES, key[:-8] + (7).to_bytes(8, "big"), b"\0\0\0\2" + value[4:])


def test_a_segment_that_is_gone_is_found(filled: Store, opens: Opens) -> None:
    filled.close()
    segment_path(filled.path, SEGMENT).unlink()
    store = opens()
    report = store.verify()
    assert any(p.position // SEGMENT == 1 for p in report.problems)
    assert report.records == 80
    assert store.get("t", 0, 0).body == b"A" * 500


def test_progress_is_told(filled: Store) -> None:
    said: list[tuple[str, int, int]] = []
    filled.verify(lambda *words: said.append(words))
    assert said
    assert said[-1][1] == said[-1][2]


# --- the CRC over the whole record ---

CHECKED = StoreConfig(segment_size=SEGMENT, property_crc=True, check_property_crc=True)


@pytest.fixture
def rotten(opens: Opens) -> Store:
    """A closed store whose records carry that CRC; in offset 5 of queue 0 a property has rotted."""
    store = opens(CHECKED, "whole")
    store.create_topic("t", queues=4)
    store.put_batch(
        [Message("t", b"%d" % i, queue=0, properties={"region": "eu"}) for i in range(9)]
    )
    victim = store.get("t", 0, 5)
    store.close()
    flip(store, victim.position + victim.size - 20 - len("eu\x02"))
    return store


def test_a_record_that_contradicts_its_own_crc_is_found_whatever_the_settings(
    opens: Opens, rotten: Store
) -> None:
    victim = opens(SMALL, "whole", read_only=True).get("t", 0, 5)
    for config in (SMALL, CHECKED):
        (problem,) = opens(config, "whole", read_only=True).verify().problems
        assert (problem.kind, "CRC property" in problem.message) == ("record", True)
        assert problem.position == victim.position


def test_reads_refuse_a_record_that_contradicts_its_own_crc_if_that_is_asked_for(
    opens: Opens, rotten: Store
) -> None:
    store = opens(CHECKED, "whole", read_only=True)
    with pytest.raises(RecordDamaged, match="CRC property") as raised:
        store.get("t", 0, 5)
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(RecordDamaged, match="go on at offset 6"):
        store.pull("t", 0, 5)
    with pytest.raises(RecordDamaged):
        store.read_at(raised.value.position)
    assert len(store.pull("t", 0, 6).messages) == 3
    assert len(opens(SMALL, "whole", read_only=True).pull("t", 0, 0).messages) == 9


def test_reads_that_ask_for_the_crc_refuse_a_record_without_it(filled: Store, opens: Opens) -> None:
    filled.close()
    store = opens(CHECKED, read_only=True)
    with pytest.raises(RecordDamaged, match="no CRC property"):
        store.pull("t", 0, 0)
    assert store.verify().problems
