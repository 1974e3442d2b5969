"""An object store that breaks: 500s, silence, short answers, stale lists, refusals, no store."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.support import inside_tiering
from tests.support.clock import VirtualClock
from tests.tiering.places.buckets import SECRET, fetch, open_bucket
from tests.tiering.places.faulty import QUOTED, Fault, FaultyServer
from tiering.errors import (
    ObjectExists,
    ObjectNameIllegal,
    ObjectNotFound,
    ObjectTooShort,
    PlaceDenied,
    PlaceError,
    PlaceFull,
    PlaceUnavailable,
    PlaceUnsuitable,
)
from tiering.places.place import Place, open_place

KEY: Final = "0-1.kvarc"
SMALL: Final = b"an archive " * 10
LARGE: Final = bytes(range(256)) * (80 << 10)

CALLS: Final[dict[str, Callable[[Place], object]]] = {
    "read": lambda place: place.read(KEY, 0, 10),
    "info": lambda place: place.info(KEY),
    "list": lambda place: list(place.list()),
    "delete": lambda place: place.delete(KEY),
    "put": lambda place: place.put(KEY, SMALL),
    "put large": lambda place: place.put(KEY, LARGE),
    "check": lambda place: place.check(),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def opened(faulty: FaultyServer, bucket: str, clock: VirtualClock, **options: Any) -> Place:
    return open_bucket(faulty.url, bucket, clock=clock, **options)


def uploads(s3: str, bucket: str) -> int:
    """How many uploads in parts are under way."""
    return fetch(s3, "GET", f"/{bucket}?uploads")[1].count("<UploadId>")


def shown(error: BaseException) -> str:
    """All that a log could show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


@every_call
def test_a_store_that_answers_500_for_a_while_is_asked_again(
    faulty: FaultyServer, bucket: str, clock: VirtualClock, call: Callable[[Place], object]
) -> None:
    place = opened(faulty, bucket, clock)
    place.put(KEY, LARGE if call is CALLS["put large"] else SMALL)
    faulty.faults = [Fault("status", "*", times=3)]
    call(place)
    assert 1 <= len(clock.slept) <= 3
    assert all(0.05 <= pause <= 0.1 * 2**n for n, pause in enumerate(clock.slept))


@every_call
def test_a_store_that_goes_on_answering_500_is_unavailable(
    faulty: FaultyServer, bucket: str, clock: VirtualClock, call: Callable[[Place], object]
) -> None:
    place = opened(faulty, bucket, clock, retry_for=30)
    faulty.faults = [Fault("status", "*", times=10_000, status=503, code="SlowDown")]
    with pytest.raises(PlaceUnavailable, match=r"HTTP 503.*; tried") as error:
        call(place)
    assert error.value.place == place.name
    assert sum(clock.slept) <= 30
    assert max(clock.slept) <= 5
    assert SECRET not in shown(error.value)
    assert QUOTED not in shown(error.value)


@every_call
def test_a_store_that_does_not_answer_is_unavailable(
    faulty: FaultyServer, bucket: str, clock: VirtualClock, call: Callable[[Place], object]
) -> None:
    place = opened(faulty, bucket, clock, timeout=0.05, upload_timeout=0.05, retry_for=0.2)
    faulty.faults = [Fault("stall", "*", times=10_000)]
    with pytest.raises(PlaceUnavailable, match="no answer in time"):
        call(place)


@every_call
def test_a_store_that_is_gone_is_unavailable(
    bucket: str, clock: VirtualClock, call: Callable[[Place], object]
) -> None:
    place = open_bucket("http://127.0.0.1:9", bucket, clock=clock, retry_for=1)
    with pytest.raises(PlaceUnavailable, match="refused"):
        call(place)


@every_call
def test_a_bucket_that_is_not_there_is_unavailable_at_once(
    s3: str, clock: VirtualClock, call: Callable[[Place], object]
) -> None:
    place = open_bucket(s3, "no-such-bucket", clock=clock)
    with pytest.raises(PlaceUnavailable, match=r"no such bucket \(HTTP 404"):
        call(place)
    assert clock.slept == []


@pytest.mark.parametrize("status", [401, 403])
@every_call
def test_credentials_that_are_refused_are_said_to_be_at_once(
    faulty: FaultyServer,
    bucket: str,
    clock: VirtualClock,
    call: Callable[[Place], object],
    status: int,
) -> None:
    place = opened(faulty, bucket, clock)
    faulty.faults = [Fault("status", "*", times=100, status=status, code="SignatureDoesNotMatch")]
    with pytest.raises(PlaceDenied, match=f"HTTP {status}.*check the credentials") as error:
        call(place)
    assert clock.slept == []
    assert SECRET not in shown(error.value)
    assert QUOTED not in shown(error.value)


def test_credentials_that_are_nowhere_to_be_found_are_said_to_be_missing(
    bucket: str, s3: str, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    place = open_place(
        f"s3://{bucket}?endpoint={s3}&metadata_endpoint=http://127.0.0.1:9/latest", clock=clock
    )
    with pytest.raises(PlaceDenied, match="found no credentials"):
        place.info(KEY)
    assert len(clock.slept) == 2


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("status", "code"), [(507, "XMinioStorageFull"), (400, "QuotaExceeded")], ids=["507", "quota"]
)
def test_a_store_without_room_is_full_and_keeps_nothing(
    faulty: FaultyServer,
    s3: str,
    bucket: str,
    clock: VirtualClock,
    data: bytes,
    status: int,
    code: str,
) -> None:
    place = opened(faulty, bucket, clock, retry_for=1)
    faulty.faults = [Fault("status", "PUT", times=100, status=status, code=code)]
    with pytest.raises(PlaceFull, match=code):
        place.put(KEY, data)
    assert list(place.list()) == []
    assert uploads(s3, bucket) == 0


@pytest.mark.parametrize("kind", ["cut", "short", "drop", "lose"])
def test_a_short_answer_is_asked_for_again(
    faulty: FaultyServer, bucket: str, clock: VirtualClock, kind: Any
) -> None:
    place = opened(faulty, bucket, clock)
    place.put(KEY, SMALL)
    faulty.faults = [Fault(kind, "GET", times=2)]
    assert place.read(KEY, 0, len(SMALL)) == SMALL
    assert len(clock.slept) >= 1


@pytest.mark.parametrize("kind", ["cut", "short"])
def test_a_store_that_only_gives_short_answers_is_unavailable(
    faulty: FaultyServer, bucket: str, clock: VirtualClock, kind: Any
) -> None:
    place = opened(faulty, bucket, clock, retry_for=1)
    place.put(KEY, SMALL)
    faulty.faults = [Fault(kind, "GET", times=100)]
    with pytest.raises(PlaceUnavailable, match=r"cut off|bytes of"):
        place.read(KEY, 0, len(SMALL))


class ShortClient:
    """The client, which some times gives less than it was asked for, without an error."""

    def __init__(self, client: Any, times: int) -> None:
        self._client = client
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_range(self, store: Any, key: str, *, start: int, length: int) -> bytes:
        data = bytes(self._client.get_range(store, key, start=start, length=length))
        self.times -= 1
        return data if self.times < 0 else data[:-1]


@pytest.mark.parametrize("start", [0, len(SMALL) - 10], ids=["all", "the last bytes"])
def test_an_answer_that_is_short_without_a_word_is_asked_for_again(
    s3: str, bucket: str, clock: VirtualClock, start: int
) -> None:
    place: Any = open_bucket(s3, bucket, clock=clock, retry_for=5)
    place.put(KEY, SMALL)
    client = inside_tiering.set_client(place, lambda found: ShortClient(found, 2))
    assert place.read(KEY, start, len(SMALL) - start) == SMALL[start:]
    client.times = 1000
    with pytest.raises(PlaceUnavailable, match="bytes of"):
        place.read(KEY, start, len(SMALL) - start)
    with pytest.raises(ObjectTooShort):
        place.read(KEY, start, len(SMALL) - start + 1)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("kind", ["drop", "lose"])
def test_a_put_whose_answer_was_lost_is_done_once(
    faulty: FaultyServer, s3: str, bucket: str, clock: VirtualClock, data: bytes, kind: Any
) -> None:
    place = opened(faulty, bucket, clock)
    faulty.faults = [Fault(kind, "PUT"), Fault(kind, "POST", part="uploadId")]
    info = place.put(KEY, data)
    assert place.read(KEY, 0, len(data)) == data
    assert list(place.list()) == [info]
    assert list(place.leftovers()) == []


def test_the_copy_that_gives_a_large_object_its_name_may_be_asked_for_twice(
    faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    # The first with an uploadId completes the upload, the second the copy.
    faulty.faults = [Fault("lose", "POST", part=f"one/{KEY}?uploadId")]
    place.put(KEY, LARGE)
    assert place.read(KEY, 0, len(LARGE)) == LARGE
    assert len(clock.slept) == 1


def test_a_part_that_fails_does_not_cost_the_others(
    faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    faulty.faults = [Fault("status", "PUT", part="partNumber=2", times=2)]
    place.put(KEY, LARGE)
    assert faulty.count("PUT ") == 3 + 2 + 1, "parts, tries again, and the copy's only part"
    assert place.read(KEY, 0, len(LARGE)) == LARGE


def test_an_upload_that_fails_is_given_up_and_leaves_no_parts(
    faulty: FaultyServer, s3: str, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock, retry_for=1)
    faulty.faults = [Fault("status", "PUT", part="partNumber=2", times=100, status=400)]
    with pytest.raises(PlaceUnavailable, match="refused"):
        place.put(KEY, LARGE)
    assert uploads(s3, bucket) == 0
    assert list(place.list()) == []
    assert list(place.leftovers()) == []


def test_what_could_not_be_cleaned_up_is_a_leftover_until_it_is_removed(
    faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    faulty.faults = [Fault("status", "DELETE", part=".uploading", times=100)]
    info = place.put(KEY, LARGE)
    assert list(place.list()) == [info]
    (left,) = place.leftovers()
    assert (left.size, left.key.rpartition("/")[2]) == (len(LARGE), KEY)
    assert list(place.leftovers(KEY[:3])) == [left]
    assert list(place.leftovers("another")) == []
    with pytest.raises(ObjectNameIllegal):
        place.remove_leftover(KEY)
    faulty.faults.clear()
    place.remove_leftover(left.key)
    assert list(place.leftovers()) == []
    assert list(place.list()) == [info]


def test_a_large_object_that_is_there_is_not_uploaded_again(
    faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    place.put(KEY, LARGE)
    asked = faulty.count("PUT ")
    place.put(KEY, LARGE)
    with pytest.raises(ObjectExists):
        place.put(KEY, LARGE[1:])
    assert faulty.count("PUT ") == asked


def test_of_two_large_uploads_the_second_to_finish_is_refused_by_the_store(
    s3: str, bucket: str
) -> None:
    """Both found the name free; so only the condition at the end can tell."""
    place = open_bucket(s3, bucket)
    under_way, other_done = threading.Event(), threading.Event()

    def pace(_: int) -> None:
        under_way.set()
        assert other_done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(place.put, KEY, LARGE, pace=pace)
        assert under_way.wait(60)
        place.put(KEY, LARGE[1:])
        other_done.set()
        with pytest.raises(ObjectExists):
            first.result(60)
    assert place.read(KEY, 0, len(LARGE) - 1) == LARGE[1:]
    assert [found.key for found in place.list()] == [KEY]
    assert list(place.leftovers()) == []


def test_a_stale_list_hides_and_shows_what_info_knows_better(
    faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    place.put("old", b"x")
    assert [found.key for found in place.list()] == ["old"]
    place.delete("old")
    place.put("new", b"y")
    faulty.faults = [Fault("stale")]
    assert [found.key for found in place.list()] == ["old"]
    with pytest.raises(ObjectNotFound):
        place.info("old")
    place.delete("old")
    assert place.info("new").size == 1
    with pytest.raises(ObjectExists):
        place.put("new", b"z")
    assert [found.key for found in place.list()] == ["new"]


def test_a_list_that_breaks_off_is_taken_up_where_it_was(
    faulty: FaultyServer, s3: str, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    keys = [f"{n:05d}" for n in range(1050)]
    for key in keys:
        assert fetch(s3, "PUT", f"/{bucket}/store/one/{key}")[0] == 200
    found = []
    for number, info in enumerate(place.list()):
        if number == 10:
            faulty.faults = [Fault("status", times=2)]
        found.append(info.key)
    assert found == keys
    assert len(clock.slept) == 2


def test_other_folders_of_the_bucket_are_not_seen(s3: str, bucket: str) -> None:
    place = open_bucket(s3, bucket)
    for path in ("store/one-more/a", "store/two/b", "c", "store/one/not%20ours"):
        assert fetch(s3, "PUT", f"/{bucket}/{path}")[0] == 200
    assert list(place.list()) == []


def test_a_store_that_ignores_the_condition_is_found_unsuitable(
    faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    faulty.faults = [Fault("ignore", "*", times=1000)]
    with pytest.raises(PlaceUnsuitable, match="If-None-Match"):
        place.check()
    faulty.faults = [Fault("ignore", "POST", times=1000)]
    with pytest.raises(PlaceUnsuitable, match="If-None-Match"):
        place.check()
    faulty.faults = [Fault("status", "PUT", times=1000, status=501, code="NotImplemented")]
    with pytest.raises(PlaceUnsuitable, match="HTTP 501 NotImplemented"):
        place.check()
    faulty.faults.clear()
    assert list(place.leftovers()) == []


def test_a_name_that_is_taken_and_free_again_is_put(
    faulty: FaultyServer, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    faulty.faults = [Fault("status", "PUT", status=412, code="PreconditionFailed")]
    place.put(KEY, SMALL)
    faulty.faults = [Fault("status", "PUT", status=409, code="ConditionalRequestConflict")]
    place.put("another", SMALL)
    assert place.read("another", 0, len(SMALL)) == SMALL


def test_a_store_that_loses_bytes_of_a_put_is_found_out(
    faulty: FaultyServer, s3: str, bucket: str, clock: VirtualClock
) -> None:
    place = opened(faulty, bucket, clock)
    faulty.faults = [Fault("status", "PUT", status=200)]
    fetch(s3, "PUT", f"/{bucket}/store/one/{KEY}")
    with pytest.raises(PlaceError, match="0 bytes after"):
        place.put(KEY, SMALL)


def test_an_object_above_what_a_store_copies_is_refused_before_it_is_sent(
    s3: str, bucket: str, tmp_path: Any
) -> None:
    place = open_bucket(s3, bucket)
    huge = tmp_path / "huge"
    with huge.open("wb") as f:
        f.truncate((5 << 30) + 1)
    with pytest.raises(PlaceError, match="lower the size"):
        place.put(KEY, huge)
