"""The archives of a job count all or not at all, and archives that do not count go."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import kvstore
import tiering
from kvstore import ConfigError, StoredMessage
from kvstore.errors import FormatTooNew, FormatTooOld
from tests.support.contents import read_all
from tests.support.raising import raising
from tests.tiering.spark.conftest import SEGMENT, by_position
from tests.tiering.spark.sink.jobs import JOB, Job, Row, Watched, bodies, made_up, objects, write
from tests.tiering.spark.test_reading import read
from tiering import NothingToRestore
from tiering.archive.archive_reader import Archive
from tiering.errors import ObjectNotFound, OffsetsTaken, PlaceError, RowIllegal, StoresAmbiguous
from tiering.keys.key_file import KeyFile
from tiering.places.commits import read_ids, take_ids
from tiering.places.dead_jobs import sweep
from tiering.places.objects import checkpoint_key, commit_key, job_folder
from tiering.places.place import open_place
from tiering.spark.options import sink_options
from tiering.spark.sink import archives, jobs
from tiering.spark.sink.sink_writer import job_of

DAY = 86_400_000


def placed(queue: int, *offsets: int, topic: str = "a", text: bytes = b"x") -> list[Row]:
    return [
        {"topic": topic, "body": text + b"%d" % n, "queue": queue, "offset": n} for n in offsets
    ]


def test_nothing_counts_before_the_commit_and_all_of_it_after(tmp_path: Path) -> None:
    job = Job(tmp_path / "out")
    job.task(0, made_up("a", 5))
    job.task(1, made_up("b", 5), made_up("a", 2))
    assert len(objects(tmp_path)) == 2
    with pytest.raises(NothingToRestore):
        read(tmp_path / "out")
    assert job.commit()
    assert len(bodies(tmp_path / "out")) == 12
    assert not job.commit(), "it counts already"
    assert len(bodies(tmp_path / "out")) == 12


def test_failed_attempts_and_losers_of_a_race_leave_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = Job(out)
    job.task(0, made_up("a", 5))
    # Of task 1 three tries come through, one fails half-way; one of them is told to the driver.
    with pytest.raises(RowIllegal):
        job.task(1, made_up("b", 3), made_up("b", 1, queue=0, offset=-1))
    lost = [job.task(1, made_up("b", 3)) for _ in range(3)][1:]
    job.archives = [one for one in job.archives if one not in [a for made in lost for a in made]]
    assert len(objects(out)) == 4
    assert job.commit()
    assert len(objects(out)) == 2
    assert len(bodies(out)) == 8


def test_an_abort_takes_all_away_but_what_was_committed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write(out, made_up("a", 3))
    second = Job(out, "cd")
    second.task(0, made_up("a", 3))
    assert second.abort() != []
    assert len(objects(out)) == 1
    assert first.abort() == []
    assert len(bodies(out)) == 3


def test_what_a_job_that_died_has_left_goes_a_day_later(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, made_up("a", 3))
    dead = Job(out, "cd")
    (left,) = dead.task(0, made_up("a", 3))
    now = int((out / left.key).stat().st_mtime * 1000)
    assert sweep(dead.place, now + DAY // 2) == []
    assert sweep(dead.place, now + DAY + 2000) == [left.key]
    assert len(bodies(out)) == 3
    assert len(objects(out)) == 1


def test_jobs_one_after_the_other_go_on_in_offsets_and_positions(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write(out, made_up("a", 3), made_up("a", 2))
    second = write(out, made_up("a", 4), made_up("b", 2), name="cd")
    assert first.state.store_id == second.state.store_id
    rows, _, _ = read(out)
    held = sorted((r["topic"], r["queue"], r["offset"]) for r in rows)
    assert held == [
        *(("a", 0, n) for n in range(7)), ("a", 1, 0), ("a", 1, 1), ("b", 1, 0), ("b", 1, 1),
    ]  # fmt: skip
    assert len({r["position"] for r in rows}) == len({r["message_id"] for r in rows}) == 11


def test_overwriting_shows_the_old_rows_until_the_new_ones_count(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, made_up("a", 3))
    write(out, made_up("a", 3), name="ef")
    job = Job(out, "cd", overwrite=True)
    job.task(0, made_up("b", 2))
    assert len(bodies(out)) == 6
    goes_on = job.log()
    assert len(goes_on.counting()) == 2
    assert job.commit()
    goes_on.look()
    assert [one.job for one in goes_on.counting()] == [job.name]
    assert bodies(out) == [b"0 of b", b"1 of b"]
    assert len(objects(out)) == 1
    assert [r["offset"] for r in read(out)[0]] == [0, 1]
    assert [one.job for one in job.log().counting()] == [job.name]


def test_an_overwrite_that_is_cut_off_shows_the_new_rows_and_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write(out, made_up("a", 3))
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "clear_overwritten", raising(PlaceError("the network is gone")))
        job = write(out, made_up("b", 2), name="cd", overwrite=True)
    assert len(objects(out)) == 2
    assert bodies(out) == [b"0 of b", b"1 of b"]
    sweep(job.place, DAY)
    assert len(objects(out)) == 1
    assert bodies(out) == [b"0 of b", b"1 of b"]


def test_what_was_replaced_twice_over_never_counts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write(out, placed(0, 1, text=b"first"), name="ab")
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "clear_overwritten", raising(PlaceError("no answer")))
        write(out, placed(0, 1, text=b"second"), name="cd", overwrite=True)
    write(out, placed(0, 1, text=b"third"), name="ef", overwrite=True)
    assert bodies(out) == [b"third1"]
    sweep(open_place(out), DAY)
    assert bodies(out) == [b"third1"]
    assert len(objects(out)) == 1
    job = write(out, placed(0, 1, text=b"fourth"), name="12", overwrite=True)
    assert [one.job for one in job.log().counting()] == ["12" * 16]
    assert objects(out) == {Path(job.archives[0].key).name}


def test_a_job_whose_archives_were_taken_for_a_dead_ones_does_not_count(tmp_path: Path) -> None:
    job = Job(tmp_path / "out")
    job.task(0, made_up("a", 5))
    job.task(1, made_up("b", 5))
    (tmp_path / "out" / job.archives[0].key).unlink()
    with pytest.raises(ObjectNotFound, match="not there any more"):
        job.commit()
    with pytest.raises(NothingToRestore):
        read(tmp_path / "out")


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ([0, 1, 2], [2, 3], "offsets 2 to 2"),
        ([0, 2, 4, 6], [1, 3, 4, 5], "offsets 4 to 4"),
        ([0, 2, 4, 6], [1, 3, 5], None),
        ([5, 6], [1, 2], None),
    ],
    ids=["end", "between", "in turn", "apart"],
)
def test_an_offset_that_two_tasks_have_is_told_before_anything_counts(
    tmp_path: Path, one: list[int], other: list[int], told: str | None
) -> None:
    out = tmp_path / "out"
    job = Job(out)
    job.task(0, placed(3, *one))
    job.task(1, placed(3, *other))
    if told is None:
        assert job.commit()
        assert len(bodies(out)) == len(one) + len(other)
        return
    with pytest.raises(OffsetsTaken, match=f"queue 3 of topic 'a': {told} .*two tasks"):
        job.commit()
    with pytest.raises(NothingToRestore):
        read(out)


def test_an_offset_that_an_earlier_job_has_written_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, placed(0, 1, 2, 3))
    with pytest.raises(OffsetsTaken, match=r"offsets 3 to 3 .*earlier job"):
        write(out, placed(0, 3, 4), name="cd")
    with pytest.raises(OffsetsTaken, match=r"offsets 1 to 1 .*earlier job"):
        write(out, placed(0, 0, 1), name="ce")
    write(out, placed(0, 4), name="ef")
    write(out, placed(0, 1), name="dd", overwrite=True)
    assert bodies(out) == [b"x1"]
    # Overwritten archives are in the way of nothing.
    write(out, made_up("a", 2), name="de")
    assert sorted(r["offset"] for r in read(out)[0]) == [1, 2, 3]


def test_positions_go_on_behind_the_last_of_all_jobs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, offset, position in (("ab", 1, 7 << 30), ("cd", 2, 100)):
        write(out, [row | {"position": position} for row in placed(0, offset)], name=name)
    assert Job(out, "ef").state.position == 8 << 30


def test_a_job_that_ran_beside_another_is_told_before_it_hides_that(tmp_path: Path) -> None:
    out = tmp_path / "out"
    one, other = (Job(out, name, store_id="1" * 32) for name in ("aa", "bb"))
    one.task(0, made_up("a", 3))
    other.task(0, made_up("b", 3))
    assert one.commit()
    with pytest.raises(OffsetsTaken, match="begins at position 0, and so does"):
        other.commit()
    assert bodies(out) == [b"%d of a" % n for n in range(3)]


@pytest.mark.parametrize("is_taken", [True, False])
def test_of_two_jobs_that_commit_in_one_instant_the_second_is_compared_with_the_first(
    tmp_path: Path, is_taken: bool
) -> None:
    out = tmp_path / "out"
    write(out, placed(0, 1))
    one, other = Job(out, "bb"), Job(out, "cc")
    one.task(0, [row | {"position": 10_000} for row in placed(0, 2)])
    other.task(0, [row | {"position": 20_000} for row in placed(0, 2 if is_taken else 3)])
    place = Watched(out)

    def another_is_first(what: str, key: str) -> None:
        if key.endswith(".commit"):
            place.before = lambda *_: None
            assert other.commit()

    place.before = another_is_first
    one.place = place
    if is_taken:
        with pytest.raises(OffsetsTaken, match=r"offsets 2 to 2 .*earlier job"):
            one.commit()
        assert bodies(out) == [b"x1", b"x2"]
    else:
        assert one.commit()
        assert bodies(out) == [b"x1", b"x2", b"x3"]
    assert place.counts["read"] > 0


def test_offsets_and_positions_that_come_twice_in_a_task_are_told(tmp_path: Path) -> None:
    job = Job(tmp_path / "out")
    with pytest.raises(RowIllegal, match="queue 1, offset 7: column offset") as caught:
        job.task(0, placed(1, 7, 8), placed(1, 9, 7))
    assert (caught.value.topic, caught.value.queue, caught.value.offset) == ("a", 1, 7)
    rows = [row | {"position": 5} for row in placed(1, 7, 8)]
    with pytest.raises(RowIllegal, match="has position 5, and so has"):
        job.task(0, rows)


def test_many_rows_go_by_the_disk_and_come_out_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"topic": f"t{n % 7}", "queue": n % 3, "offset": 10_000 - n, "body": b"%d" % n * 50}
        for n in range(3000)
    ]
    batches = [rows[at : at + 500] for at in range(0, 3000, 500)]
    spilled: list[bool] = []
    collect = archives.collect

    def noted(*given: Any) -> Any:
        found = collect(*given)
        spilled.append(found.file is not None)
        return found

    monkeypatch.setattr(archives, "collect", noted)
    for name, spill_bytes in (("memory", "1000000"), ("disk", "65536")):
        job = Job(tmp_path / name, spill_bytes=spill_bytes)
        job.task(0, *batches)
        assert job.commit()
    assert spilled == [False, True]
    found = [sorted((r["topic"], r["queue"], r["offset"], r["body"]) for r in read(tmp_path / n)[0])
             for n in ("memory", "disk")]  # fmt: skip
    assert found[0] == found[1] == sorted(
        (r["topic"], r["queue"], r["offset"], r["body"]) for r in rows
    )  # fmt: skip


def test_archives_roll_by_bytes_of_records(tmp_path: Path) -> None:
    job = Job(tmp_path / "out", archive_bytes="65536")
    made = job.task(0, [row | {"body": bytes(1000)} for row in made_up("a", 300)])
    assert len(made) > 4
    assert job.commit()
    assert len(bodies(tmp_path / "out")) == 300


def test_topics_have_one_id_whoever_asks(tmp_path: Path) -> None:
    place = open_place(tmp_path)
    store = "0" * 32
    found: list[tuple[str, int]] = []
    names = [f"t{n}" for n in range(8)]

    def ask(mine: list[str]) -> None:
        given = take_ids(place, store, mine).ids
        found.extend((name, given[name]) for name in mine)

    threads = [
        threading.Thread(target=ask, args=(names[n % 3 :: 2],), name=f"ids {n}") for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = read_ids(place, store).ids
    assert len(set(ids.values())) == len(ids)
    assert all(ids[name] == number for name, number in found)


def test_the_rows_of_a_store_come_back_byte_for_byte(
    folder: Path, held: dict[int, StoredMessage], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rows = read(folder)[0]
    half = len(rows) // 2
    write(out, rows[:half], rows[half:], block_bytes="8192")
    report = tiering.restore(out, tmp_path / "restored")
    assert report.messages == len(held)
    with kvstore.open(tmp_path / "restored") as store:
        assert by_position(store) == held
        assert store.verify(archives=True).problems == []
        some = held[sorted(held)[3]]
        assert store.find(some.message_id) == some
        last = max(m.offset for m in held.values() if (m.topic, m.queue) == ("orders", 0))
        assert store.put("orders", b"new", queue=0).offset == last + 1


def test_a_restored_store_has_all_queues_that_tasks_knew_of(tmp_path: Path) -> None:
    write(tmp_path / "out", *[made_up("a", 2) for _ in range(4)])
    tiering.restore(tmp_path / "out", tmp_path / "restored", copy=True)
    with kvstore.open(tmp_path / "restored") as store:
        assert [store.bounds("a", queue).next_offset for queue in range(4)] == [2] * 4
        (info,) = store.topics()
        assert (info.read_queues, info.write_queues) == (4, 4)


def test_rows_are_not_written_among_a_stores_own_archives_by_oversight(
    folder: Path, tmp_path: Path
) -> None:
    for where in (folder, folder / "archive"):
        with pytest.raises(ConfigError, match="tier attach"):
            Job(where)
    copy = tmp_path / "archive"
    tiering.restore(folder / "archive", tmp_path / "x", copy=True)
    os.rename(tmp_path / "x" / "archive", copy)
    with pytest.raises(ConfigError, match="the option store_id"):
        Job(copy)
    (store_id,) = {path.name for path in copy.iterdir()}
    with pytest.raises(ConfigError, match="overwriting would"):
        Job(copy, overwrite=True, store_id=store_id)
    before = len(read(copy)[0])
    job = Job(copy, store_id=store_id)
    (made,) = job.task(0, made_up("orders", 5), made_up("new", 5))
    assert job.commit()
    rows = read(copy)[0]
    assert len(rows) == before + 10
    assert len({(r["topic"], r["queue"], r["offset"]) for r in rows}) == before + 10
    report = tiering.restore(copy, tmp_path / "y")
    assert report.messages == before + 10
    assert made.messages == 10


def test_another_store_id_is_another_store(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, made_up("a", 1), store_id="1" * 32)
    write(out, made_up("a", 2), store_id="2" * 32)
    with pytest.raises(StoresAmbiguous):
        read(out)
    with pytest.raises(StoresAmbiguous):
        Job(out)
    assert len(read(out, store_id="2" * 32)[0]) == 2


def test_a_commit_of_a_later_version_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = write(out, made_up("a", 1))
    for name in (checkpoint_key(job.state.store_id), commit_key(job.state.store_id, 0)):
        path = out / name
        path.write_text(path.read_text().replace('"format":2', '"format":3'))
        with pytest.raises(FormatTooNew, match="newer kvmq"):
            read(out)
        path.rename(tmp_path / path.name)


def test_a_place_of_the_first_format_of_commits_is_refused(tmp_path: Path) -> None:
    job = write(tmp_path / "out", made_up("a", 1))
    old = tmp_path / "out" / job.state.store_id
    old.mkdir()
    (old / f"job-{JOB}.commit").write_text("{}")
    with pytest.raises(FormatTooOld, match="version that wrote it"):
        read(tmp_path / "out")
    with pytest.raises(FormatTooOld, match="version that wrote it"):
        Job(tmp_path / "out")


def test_encrypted_topics_have_archives_of_their_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    KeyFile(keys).make("secret")
    out = tmp_path / "out"
    job = Job(out, key_file=str(keys))
    job.task(0, made_up("secret", 20), made_up("open", 20))
    assert job.commit()
    kinds = {name.rpartition("-")[2] for name in objects(out)}
    assert len(objects(out)) == 2
    assert "encrypted.kvarc" in kinds
    assert len(read(out, key_file=str(keys))[0]) == 40
    with pytest.raises(kvstore.StoreError, match="secret"):
        read(out)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"codec": "zip"}, "zstd or lz4"),
        ({"level": "x"}, "option level"),
        ({"archive_bytes": "5"}, "65536 or more"),
        ({"store_id": "XY"}, "32 hex digits"),
        ({"retention_class": "week"}, "no retention class"),
        ({"colour": "red"}, "no option 'colour'"),
        ({"path": ""}, "where archives are to go"),
    ],
    ids=lambda one: "".join(one) if isinstance(one, dict) else "",
)
def test_options_of_writing_that_are_none_are_refused(
    tmp_path: Path, options: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        sink_options({"path": str(tmp_path), **options})


def test_a_batch_of_a_stream_that_comes_again_counts_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = Job(out)
    job.name = job_of("query", 7)
    job.task(0, made_up("a", 3))
    assert job.commit(query="query", batch=7)
    again = Job(out)
    again.name = job_of("query", 7)
    again.task(0, made_up("a", 3))
    assert not again.commit(query="query", batch=7)
    assert len(bodies(out)) == 3
    assert len(objects(out)) == 1
    assert job_of("query", 8) != job_of("query", 7) != job_of("other", 7)


def test_archives_of_jobs_say_what_they_are_of(tmp_path: Path) -> None:
    job = write(tmp_path / "out", made_up("a", 3))
    (made,) = job.archives
    assert made.key.startswith(job_folder(job.state.store_id, 0, job.name))
    manifest = Archive.open(job.place.source(made.key)).manifest
    assert manifest.store_id == job.state.store_id
    assert manifest.segments == ((made.first_position, made.end_position),)
    assert manifest.retention_class == "warmever"


def test_the_rows_of_a_store_are_attached_to_another_that_goes_on(
    folder: Path, held: dict[int, StoredMessage], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rows = read(folder)[0]
    write(out, rows[::2], rows[1::2])
    queues: dict[tuple[str, int], list[StoredMessage]] = {}
    for message in sorted(held.values(), key=lambda m: m.offset):
        queues.setdefault((message.topic, message.queue), []).append(message)
    with kvstore.open(tmp_path / "store", kvstore.StoreConfig(segment_size=SEGMENT)) as store:
        store.create_topic("mine", queues=1)
        store.put("mine", b"1")
        report = tiering.attach(store, out)
        assert report.made == ["events", "orders"]
        store.put("mine", b"2")
        found = read_all(store)
        assert [m.body for m in found.pop(("mine", 0))] == [b"1", b"2"]
        assert found.keys() == queues.keys()
        for queue, due in queues.items():
            here = [
                a.__replace__(position=b.position) for a, b in zip(found[queue], due, strict=True)
            ]
            assert here == due
        assert store.verify(archives=True).problems == []
