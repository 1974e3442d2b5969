"""The promises of all places, held against each kind."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from kvstore.errors import CallerError
from tests.tiering.places.buckets import SECRET
from tiering.errors import (
    ObjectExists,
    ObjectNameIllegal,
    ObjectNotFound,
    ObjectTooShort,
    PlaceError,
    TieringStopped,
)
from tiering.places.place import Given, Place

KEY: Final = "00000000000000000000-00000000001073741824.kvarc"
SMALL: Final = b"an archive " * 10
LARGE: Final = bytes(range(256)) * (80 << 10)
"""20 MiB: three parts of an upload."""


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
@pytest.mark.parametrize("as_what", ["bytes", "path", "stream"])
def test_what_was_put_is_there_whole(
    place: Place, tmp_path: Path, data: bytes, as_what: str
) -> None:
    given: Given = data
    if as_what == "path":
        given = tmp_path / "given"
        given.write_bytes(data)
    elif as_what == "stream":
        given = io.BytesIO(b"skipped" + data)
        given.seek(7)
    before = time.time() * 1000
    info = place.put(KEY, given)
    assert (info.key, info.size) == (KEY, len(data))
    assert abs(info.modified - before) < 60_000
    assert place.info(KEY) == info
    assert place.read(KEY, 0, len(data)) == data
    assert list(place.list()) == [info]
    assert list(place.leftovers()) == []


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_name_that_is_taken_is_refused_unless_the_bytes_are_the_same(
    place: Place, data: bytes
) -> None:
    first = place.put(KEY, data)
    assert place.put(KEY, data) == first
    for other in (data[:-1] + b"?", data + b"?", b""):
        with pytest.raises(ObjectExists, match="somebody else"):
            place.put(KEY, other)
    assert place.read(KEY, 0, len(data)) == data
    assert list(place.leftovers()) == []


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_name_that_is_taken_is_given_away_when_that_is_asked_for(
    place: Place, data: bytes
) -> None:
    place.put(KEY, b"old")
    place.put(KEY, data, if_absent=False)
    assert place.read(KEY, 0, len(data)) == data


@pytest.mark.parametrize("size", [1000, 100_000], ids=["small", "large"])
def test_of_many_that_put_different_bytes_at_once_one_wins(place: Place, size: int) -> None:
    start = threading.Barrier(6)

    def put(number: int) -> bytes | None:
        data = bytes([number]) * size
        start.wait()
        try:
            place.put(KEY, data)
        except ObjectExists:
            return None
        return data

    with ThreadPoolExecutor(6) as pool:
        won = [data for data in pool.map(put, range(6)) if data is not None]
    assert won == [place.read(KEY, 0, size)]
    assert list(place.leftovers()) == []


def test_many_that_put_the_same_bytes_at_once_are_all_done(place: Place) -> None:
    with ThreadPoolExecutor(6) as pool:
        infos = set(pool.map(lambda _: place.put(KEY, SMALL), range(6)))
    assert infos == {place.info(KEY)}


def test_a_range_is_read_exactly_or_not_at_all(place: Place) -> None:
    place.put(KEY, SMALL)
    assert place.read(KEY, 3, 7) == SMALL[3:10]
    assert place.read(KEY, 3, 0) == b""
    assert place.read(KEY, len(SMALL) - 1, 1) == SMALL[-1:]
    for offset, size in (
        (0, len(SMALL) + 1),
        (len(SMALL), 1),
        (len(SMALL) + 5, 2),
        (1 << 60, 1),
        (0, 1 << 80),
    ):
        with pytest.raises(ObjectTooShort, match=KEY) as error:
            place.read(KEY, offset, size)
        assert error.value.size == len(SMALL)
    for offset, size in ((-1, 1), (0, -1)):
        with pytest.raises(CallerError):
            place.read(KEY, offset, size)


def test_a_source_knows_size_and_name_and_reads(place: Place) -> None:
    place.put(KEY, SMALL)
    for source in (place.source(KEY), place.source(KEY, len(SMALL))):
        assert source.size == len(SMALL)
        assert source.name == f"{place.name}/{KEY}"
        assert source.read(3, 7) == SMALL[3:10]


def test_what_is_not_there_is_said_to_be_missing(place: Place) -> None:
    for ask in (place.info, place.size, place.source, lambda key: place.read(key, 0, 1)):
        with pytest.raises(ObjectNotFound, match=KEY):
            ask(KEY)
    assert list(place.list()) == []


def test_what_was_deleted_is_gone_and_may_be_deleted_again(place: Place) -> None:
    place.put(KEY, SMALL)
    place.delete(KEY)
    place.delete(KEY)
    place.delete("never/was")
    assert list(place.list()) == []
    with pytest.raises(ObjectNotFound):
        place.read(KEY, 0, 1)
    place.put(KEY, b"another")
    assert place.read(KEY, 0, 7) == b"another"


def test_the_folders_at_the_top_are_told_without_what_is_in_them(place: Place) -> None:
    for key in ("b/c/d", "b/e", "a-b/c", KEY):
        place.put(key, SMALL)
    assert place.folders() == ["a-b", "b"]
    assert list(place.list("nowhere/")) == list(place.list("../")) == list(place.list("b/x/")) == []


def test_a_list_is_of_the_names_that_begin_so(place: Place) -> None:
    keys = ["a", "ab", "a.kvarc", "b/a", "b/ab", "b/c/d", "bc"]
    for key in keys:
        place.put(key, key.encode())

    def listed(prefix: str) -> list[str]:
        return sorted(found.key for found in place.list(prefix))

    assert listed("") == sorted(keys)
    assert listed("a") == ["a", "a.kvarc", "ab"]
    assert listed("b/") == ["b/a", "b/ab", "b/c/d"]
    assert listed("b/a") == ["b/a", "b/ab"]
    assert listed("b") == ["b/a", "b/ab", "b/c/d", "bc"]
    assert listed("z") == []
    assert {found.key: found.size for found in place.list("b/c")} == {"b/c/d": 5}


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../up",
        "a/../../up",
        "a//b",
        "a/",
        ".hidden",
        "a/.hidden",
        "nul\0",
        "new\nline",
        "back\\slash",
        "sp ace",
        "per%2e%2e",
        "ümlaut",
        "a" * 201,
        "/".join(["a" * 100] * 6),
    ],
)
def test_a_name_that_would_lead_elsewhere_is_refused(place: Place, key: str) -> None:
    for ask in (
        lambda: place.put(key, b""),
        lambda: place.read(key, 0, 1),
        lambda: place.info(key),
        lambda: place.source(key, 1),
        lambda: place.delete(key),
    ):
        with pytest.raises(ObjectNameIllegal):
            ask()


def test_the_longest_names_are_kept(place: Place) -> None:
    for key in ("a" * 200, "/".join(["b" * 127] * 4)):
        place.put(key, b"x")
        assert place.read(key, 0, 1) == b"x"


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_put_asks_its_pace_about_every_byte(place: Place, data: bytes) -> None:
    asked: list[int] = []
    place.put(KEY, data, pace=asked.append)
    assert sum(asked) == len(data)
    assert max(asked) <= 8 << 20


@pytest.mark.parametrize("error", [TieringStopped("now"), KeyboardInterrupt()], ids=["stop", "^C"])
def test_a_put_that_is_stopped_on_its_way_leaves_nothing(
    place: Place, error: BaseException
) -> None:
    asked: list[int] = []

    def pace(size: int) -> None:
        asked.append(size)
        if len(asked) == 3:
            raise error

    with pytest.raises(type(error)):
        place.put(KEY, LARGE, pace=pace)
    assert list(place.list()) == []
    assert list(place.leftovers()) == []


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_file_that_shrinks_while_it_is_put_is_not_put(
    place: Place, tmp_path: Path, data: bytes
) -> None:
    given = tmp_path / "given"
    given.write_bytes(data)
    with pytest.raises(PlaceError, match="ends now at"):
        place.put(KEY, given, pace=lambda _: given.write_bytes(data[:10]))
    assert list(place.list()) == []
    assert list(place.leftovers()) == []


def test_a_file_that_is_not_there_is_not_put(place: Place, tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="is not there"):
        place.put(KEY, tmp_path / "none")


def test_a_check_finds_a_good_place_good_and_leaves_nothing(place: Place) -> None:
    place.check()
    assert list(place.list()) == []
    assert list(place.leftovers()) == []


def test_a_place_that_was_pickled_is_the_same_place(place: Place) -> None:
    place.put(KEY, SMALL)
    again: Place = pickle.loads(pickle.dumps(place))
    assert again.name == place.name
    assert again.read(KEY, 0, len(SMALL)) == SMALL
    assert SECRET not in repr(again)
    assert SECRET not in again.name


def put_there(place: Place, key: str, data: bytes) -> None:
    place.put(key, data)


def test_a_spawned_process_works_with_the_place_it_was_given(place: Place) -> None:
    place.put("before", b"x")
    child = multiprocessing.get_context("forkserver").Process(
        target=put_there, args=(place, KEY, SMALL)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 0
    child.close()
    assert place.read(KEY, 0, len(SMALL)) == SMALL
