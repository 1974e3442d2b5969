"""Key file: the keys of topics whose archives are encrypted, in one small file.

The idea: JSON with each topic's key and its id. A reader of the file can read the archives, so it
belongs neither in the bucket with them nor in its backups. To destroy a topic's key the file is
written anew without it, and the old file's bytes are overwritten. Only the id of a destroyed key
stays.

Several processes may use one file. It is replaced as a whole: without a lock another process could
do the same between a process's read and its write, and one of the changes would be lost. The lock
(`file_lock`) is a file beside the file, held by `flock`, which ends with the process that holds it.
The lock file is removed when the lock is released, so nothing is left in the user's folder. The key
file is read again once another file has taken its place. Where the path is a link, the file that it
leads to is changed, and the temporary files stand beside that one.

Invariants:

- One thread of all processes holds the lock at a time, and a process that only reads never waits
  and needs no right to write beside the file.
- The file is its owner's alone, and a crash leaves either the old keys or the new ones.
- A key is never given for another topic than the one it was made for.
- A destroyed key does not come back, even if another process makes a key meanwhile, and a new key
  has a new id.
- A key is reported as destroyed only if it was destroyed by way of this file: another file's keys
  may be wanted again.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from kvstore.errors import ConfigError, FormatError, KeyDestroyed, KeyMissing
from kvstore.files import Files, LocalFiles, local_path
from tiering.keys.crypto import KEY_SIZE, KeyProvider, TopicKey

_SUFFIX: Final = ".lock"


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Holds the lock of a file; waits for its present holder. A thread that holds it waits for ever
    if it asks again.
    """
    lock = path.with_name(path.name + _SUFFIX)
    fd = _take(lock)
    try:
        yield
    finally:
        # Removed while it is still held: a waiting process sees that it is not the file of that
        # name any more.
        with suppress(FileNotFoundError):
            lock.unlink()
        # A child process that was forked meanwhile has the file open, too.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _take(lock: Path) -> int:
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, lock):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, lock: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(fd), lock.stat())
    except FileNotFoundError:
        return False


_FORMAT: Final = 2
"""Format 1 did not have `destroyed`."""
_ID_BYTES: Final = 8


class _Entry(msgspec.Struct):
    """One topic. `key_id` and `key` are empty when its key was destroyed; `destroyed` has the ids
    of all its destroyed keys.
    """

    topic: str
    key_id: str
    key: str
    destroyed: list[str] = []


class _Content(msgspec.Struct):
    format: int
    keys: list[_Entry]


class KeyFile:
    """A KeyProvider of the file at `path`, which need not exist yet.

    A topic is encrypted from the time that `make` gives it a key. Raises FormatError if the file is
    not a key file.
    """

    def __init__(self, path: str | Path, files: Files | None = None) -> None:
        self._path = local_path(path, "keys").absolute()
        self._files: Files = LocalFiles() if files is None else files
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        """Identifies the file that `_entries` were read from."""
        self._entries: dict[str, _Entry] = {}
        if any(self._files.size(left) is not None for left in _left_of(self._path.resolve())):
            # A process that may only read leaves it to the next one that may write.
            with suppress(OSError), self._changing():
                pass
        self._read()

    def topics(self) -> list[str]:
        """The topics that have a key, sorted."""
        with self._lock:
            return sorted(topic for topic, entry in self._read().items() if entry.key)

    def make(self, topic: str) -> TopicKey:
        """The topic's key, made now if it has none, or none any more."""
        with self._lock:
            entry = self._read().get(topic)
            if entry is not None and entry.key:
                return _key_of(entry)
        with self._lock, self._changing() as path:
            entries = dict(self._read())
            entry = entries.get(topic)
            if entry is None or not entry.key:
                key = secrets.token_bytes(KEY_SIZE)
                gone = entry.destroyed if entry is not None else []
                entry = _Entry(topic, secrets.token_hex(_ID_BYTES), key.hex(), gone)
                entries[topic] = entry
                self._write(path, entries)
            return _key_of(entry)

    def destroy(self, topic: str) -> None:
        """Makes everything that is encrypted with the topic's key unreadable everywhere. Raises
        ConfigError if the topic never had a key.
        """
        with self._lock, self._changing() as path:
            entries = dict(self._read())
            entry = entries.get(topic)
            if entry is None:
                raise ConfigError(f"topic {topic!r} has no key in {self._path}")
            gone = [*entry.destroyed, *([entry.key_id] if entry.key else [])]
            entries[topic] = _Entry(topic, "", "", gone)
            self._files.link_or_copy(path, _left_of(path)[0])
            try:
                self._write(path, entries)
            finally:
                self._erase_left(path)

    def key_for_writing(self, topic: str) -> TopicKey | None:
        """See KeyProvider; KeyDestroyed until `make` gives the topic another key."""
        with self._lock:
            entry = self._read().get(topic)
        if entry is None:
            return None
        if not entry.key:
            raise KeyDestroyed(f"the key of topic {topic!r} was destroyed", topic)
        return _key_of(entry)

    def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
        """See KeyProvider."""
        with self._lock:
            entry = self._read().get(topic)
        if entry is not None and key_id in entry.destroyed:
            raise KeyDestroyed(f"key {key_id} of topic {topic!r} was destroyed", topic)
        if entry is None or entry.key_id != key_id or not entry.key:
            raise KeyMissing(
                f"key {key_id} of topic {topic!r} is not in {self._path}, and never was; give the "
                "key file that it is in",
                topic,
            )
        return _key_of(entry)

    def _read(self) -> dict[str, _Entry]:
        """The topics' entries; callers must not change the result."""
        # Checked each time: another process may have destroyed a key.
        seen = self._identity()
        while seen and seen != self._seen:
            try:
                self._entries, self._seen = self._decoded(), seen
            except FormatError:
                # A process that destroys a key overwrites the file that it replaced, which may be
                # the one that was read here.
                read, seen = seen, self._identity()
                if seen == read:
                    raise
        return self._entries if seen else {}

    def _identity(self) -> tuple[int, ...]:
        """Tells the file from each other that has been at its path; () if there is none."""
        found = self._files.facts(self._path)
        if found is None:
            return ()
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _decoded(self) -> dict[str, _Entry]:
        try:
            content = msgspec.json.decode(self._files.read(self._path), type=_Content)
            if not 1 <= content.format <= _FORMAT or any(
                len(bytes.fromhex(entry.key)) not in (0, KEY_SIZE) for entry in content.keys
            ):
                raise ValueError
        except ValueError:  # the error may not quote the file
            raise FormatError(
                f"{self._path} is not a key file of format {_FORMAT} or before"
            ) from None
        return {entry.topic: entry for entry in content.keys}

    @contextmanager
    def _changing(self) -> Iterator[Path]:
        """Holds the lock of the file that is to be changed, and gives its path with links resolved:
        a file beside a link, or one renamed over it, is not the key file.
        """
        path = self._path.resolve()
        with file_lock(path):
            self._erase_left(path)
            yield path

    def _write(self, path: Path, entries: dict[str, _Entry]) -> None:
        keys = [entries[topic] for topic in sorted(entries)]
        data = msgspec.json.encode(_Content(_FORMAT, keys))
        self._files.write_private(path, msgspec.json.format(data))
        self._entries, self._seen = {}, ()  # destroyed keys are not kept in memory either

    def _erase_left(self, path: Path) -> None:
        """Overwrites and removes files that may hold a destroyed key: the replaced file, and a new
        one that a crash kept from replacing it.
        """
        for left in _left_of(path):
            if self._files.size(left) is not None:
                # One that has another name, too, is the key file: it was not replaced yet.
                if self._files.links(left) == 1:
                    self._files.erase(left)
                self._files.remove(left)


def _left_of(path: Path) -> tuple[Path, Path]:
    """The names of the files that a crash may leave beside the key file: the one that is being
    replaced, and the one that is being written.
    """
    return path.with_name(path.name + ".old"), path.with_name(path.name + ".new")


def _key_of(entry: _Entry) -> TopicKey:
    return TopicKey(entry.key_id, bytes.fromhex(entry.key))


def provider_of(given: str | Path | KeyProvider | None, files: Files) -> KeyProvider | None:
    """The provider of a setting: the provider itself, or that of the key file at a path."""
    return KeyFile(given, files) if isinstance(given, str | Path) else given
