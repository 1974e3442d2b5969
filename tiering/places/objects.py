"""Objects: names and contents of objects in a place, and a reader of one object.

The idea: every kind of place makes the same promises about names and contents, so these are checked
here, once. A `Content` can be read again from its start, because an upload may have to be tried
again, and because bytes are compared when the object is there already.

An archive's name has the store's id, then first position, number and class. So many stores may
share a place, and a place's list can be sorted without reading objects. All objects of jobs lie in
a folder beside the store's, so that they are not listed with the store's own archives; the commits
(`commits`) say which of them count. All names of jobs' objects hold numbers, so that new objects
are found without listing the rest.

Invariants: a name that passed `check_key` stays inside its place, whatever its kind, and no part of
it begins with a dot: such names are the place's own, for unfinished objects. No two archives of any
store have the same name; no job's object has a name that a worker's object could have. A `Content`
gives exactly `size` bytes, or raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from kvstore.files import Files
from tiering.errors import ObjectExists, ObjectNameIllegal, PlaceError

SUFFIX: Final = ".kvarc"
NAME: Final = re.compile(rf"([0-9a-f]{{32}})/(\d{{20}})-(\d{{8,}})-([^/]*){re.escape(SUFFIX)}")
"""An archive's name: store id, first position, number, class."""
JOBS_FOLDER: Final = re.compile(r"([0-9a-f]{32})-jobs")
"""The folder of all objects that a store's jobs put: store id."""
OF_JOB: Final = re.compile(r"([0-9a-f]{32})-jobs/made/(\d{8})/(\d{12})-([0-9a-f]{32})/")
"""The part of a name that all archives of a job have, unfinished or not: store id, group, the
number of commits when the job began, job.
"""
OF_VERSION_1: Final = re.compile(r"([0-9a-f]{32})/job-([0-9a-f]{32})\.commit")
"""A commit's name before format 2: store id, job."""
GROUP: Final = 256
"""The number of commits in one group of jobs' archives."""


def is_of_jobs(key: str) -> bool:
    """Whether an object is one that jobs put into a place."""
    return JOBS_FOLDER.fullmatch(key.partition("/")[0]) is not None


def jobs_folder(store_id: str) -> str:
    """The prefix of the names of all objects that a store's jobs put."""
    return f"{store_id}-jobs/"


def group_folder(store_id: str, group: int) -> str:
    """The prefix of the names of a group's archives."""
    return f"{store_id}-jobs/made/{group:08d}/"


def job_name(begun: int, job: str) -> str:
    """The name of a job; it differs from that of an earlier attempt at the same work."""
    return f"{begun:012d}-{job}"


def job_folder(store_id: str, begun: int, job: str) -> str:
    """The prefix of the names of a job's archives."""
    return f"{group_folder(store_id, begun // GROUP)}{job_name(begun, job)}/"


def job_object_key(
    store_id: str, begun: int, job: str, first_position: int, number: int, class_name: str
) -> str:
    """The name of an archive that a job made."""
    file = f"{first_position:020d}-{number:08d}-{class_name}{SUFFIX}"
    return job_folder(store_id, begun, job) + file


def commit_key(store_id: str, number: int) -> str:
    """The name of a commit."""
    return f"{store_id}-jobs/commits/{number:012d}.commit"


def page_key(store_id: str, number: int) -> str:
    """The name of a page, by the number of its first commit."""
    return f"{store_id}-jobs/pages/{number:012d}.page"


def checkpoint_key(store_id: str) -> str:
    """The name of the checkpoint."""
    return f"{store_id}-jobs/checkpoint"


def ids_key(store_id: str, number: int) -> str:
    """The name of a list of topic ids."""
    return f"{store_id}-jobs/topics/{number:08d}.ids"


def object_key(store_id: bytes, first_position: int, number: int, class_name: str) -> str:
    """An archive's name in its place."""
    return f"{store_id.hex()}/{first_position:020d}-{number:08d}-{class_name}{SUFFIX}"


KEY_BYTES_MAX: Final = 512
PART_BYTES_MAX: Final = 200
ARCHIVE_MAX: Final = 4 << 30
"""The most bytes that a merge may put into one object, 4 GiB: object stores copy objects of up to 5
GiB.
"""
CHUNK: Final = 8 << 20
"""Bytes of one step of a copy or a comparison."""

Pace = Callable[[int], object]
"""Called with a number of bytes before they are moved; may wait, or raise to end the call."""

Given = bytes | bytearray | memoryview | Path | str | BinaryIO
"""The forms of content: bytes, the path of a file, or a stream that can seek."""

_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+@,-]*")


class ObjectInfo(NamedTuple):
    """An object: its name, bytes, and when it was written, in milliseconds since the epoch."""

    key: str
    size: int
    modified: int


class ReadablePlace(Protocol):
    """The calls of a place that a reader of one object needs."""

    @property
    def name(self) -> str:
        """The place's path or URL, without secrets."""
        ...

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Exactly `size` bytes of an object, or a typed error."""
        ...


class ObjectSource:
    """One object, to be read in ranges; `size` is in bytes, `key` is its name."""

    def __init__(self, place: ReadablePlace, key: str, size: int) -> None:
        self._place = place
        self._key = key
        self.size = size
        self.name = f"{place.name}/{key}"

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`, or a `PlaceError`."""
        return self._place.read(self._key, offset, size)


def is_key(key: str) -> bool:
    """Whether an object may have that name."""
    parts = key.split("/")
    return len(key) <= KEY_BYTES_MAX and all(
        len(part) <= PART_BYTES_MAX and _PART.fullmatch(part) for part in parts
    )


def check_key(key: str, place: str) -> str:
    """The name, if an object may have it; `ObjectNameIllegal` if not."""
    if not is_key(key):
        raise ObjectNameIllegal(
            f"{key!r:.300} can't be an object's name in {place}: it takes parts of letters, digits "
            f"and ._=+@,- with / between them, none beginning with a dot, {PART_BYTES_MAX} "
            f"characters each and {KEY_BYTES_MAX} in all",
            place,
        )
    return key


class Content:
    """The content of an object to put. One thread at a time may read it."""

    def __init__(self, given: Given, files: Files) -> None:
        self._files = files
        self._start = 0
        self._data: memoryview | None = None
        self._stream: BinaryIO | None = None
        self._path = Path()
        if isinstance(given, bytes | bytearray | memoryview):
            self._data = memoryview(given).cast("B")
            self.size = len(self._data)
        elif isinstance(given, Path | str):
            self._path = Path(given)
            self.size = self._size_of_file()
        else:
            self._stream = given
            self._start = given.tell()
            self.size = given.seek(0, 2) - self._start

    def chunks(self, size: int = CHUNK, pace: Pace | None = None) -> Iterator[bytes]:
        """The whole content, in pieces of `size` bytes, each after `pace` was asked."""
        for offset in range(0, self.size, size):
            wanted = min(size, self.size - offset)
            if pace is not None:
                pace(wanted)
            chunk = self._read(offset, wanted)
            if len(chunk) != wanted:
                raise PlaceError(
                    f"what is to be put had {self.size} bytes and ends now at "
                    f"{offset + len(chunk)}; don't change it meanwhile"
                )
            yield chunk

    def whole(self, pace: Pace | None = None) -> bytes:
        """The whole content at once."""
        return b"".join(self.chunks(CHUNK, pace))

    def _read(self, offset: int, size: int) -> bytes:
        if self._data is not None:
            return bytes(self._data[offset : offset + size])
        try:
            if self._stream is None:
                return self._files.read(self._path, offset, size)
            self._stream.seek(self._start + offset)
            return self._stream.read(size)
        except OSError as e:
            # Not the place's fault, so it must not look like one.
            raise PlaceError(f"what is to be put can't be read: {e}") from e

    def _size_of_file(self) -> int:
        try:
            size = self._files.size(self._path)
        except OSError as e:
            raise PlaceError(f"what is to be put can't be read: {e}") from e
        if size is None:
            raise PlaceError(f"what is to be put is not there: {self._path}")
        return size


class Chunks:
    """A content's chunks for the client, which may lose the errors that they raise."""

    def __init__(self, content: Content, pace: Pace | None) -> None:
        self._chunks = content.chunks(CHUNK, pace)
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except StopIteration:
            raise
        except BaseException as e:
            self.error = e
            raise


def check_same(place: ReadablePlace, found: ObjectInfo, content: Content) -> ObjectInfo:
    """The present object, if it has exactly these bytes; else `ObjectExists`."""
    offset = 0
    same = found.size == content.size
    if same:
        for chunk in content.chunks():
            if place.read(found.key, offset, len(chunk)) != chunk:
                same = False
                break
            offset += len(chunk)
    if not same:
        raise ObjectExists(
            f"{place.name}/{found.key} is there already, {found.size} bytes, and is not what was "
            f"to be put, {content.size} bytes: somebody else has committed first",
            place.name,
        )
    return found
