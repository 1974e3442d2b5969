"""Families: the one RocksDB, its opening, its column families and its batches.

The idea: a thin layer over rocksdict in raw mode (bytes in, bytes out) that gives each family its
options and turns every error of RocksDB into a typed one. Batches are atomic over all families.

After a write that found the disk full, RocksDB refuses writes until it is opened again. This module
reopens it at the next write that finds room, so no caller has to know.

Invariants: rows that belong together are written as one batch, whole or not at all; a full disk is
`DiskFull`, never damage, and reads go on meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from kvstore.errors import (
    DiskFull,
    FormatTooNew,
    FormatTooOld,
    IndexDamaged,
    IndexUnavailable,
    StoreClosed,
    StoreError,
    StoreForked,
)
from kvstore.index.keys import (
    DERIVED,
    FAMILIES,
    FORMAT,
    FORMAT_AHEAD,
    FORMAT_VERSION,
    MESSAGE_KEYS,
    META,
    PLACES,
    RUNS,
    U32,
)
from kvstore.process.forking import (
    blind,
    call_in_child,
    end_without_destructors,
    keep_for_ever,
    release_in_child,
)


def check_format(families: Families, *, to_rebuild: bool) -> None:
    """Raises `FormatTooNew` if a newer version wrote this index, `FormatTooOld` for one that
    is to be rebuilt first.
    """
    found = families.get(META, FORMAT)
    if found is None:
        raise IndexDamaged(
            f"{families.path} has no format version; `kvmq rebuild` makes the index anew"
        )
    version = U32.unpack(found)[0]
    if version > FORMAT_VERSION and version != FORMAT_AHEAD:
        raise FormatTooNew(
            f"{families.path} has format {version}, this version of kvmq reads up to "
            f"{FORMAT_VERSION}; use a newer kvmq",
            version,
            FORMAT_VERSION,
        )
    if version < FORMAT_VERSION and not to_rebuild:
        raise FormatTooOld(
            f"{families.path} has format {version}, this version of kvmq reads "
            f"{FORMAT_VERSION}; `kvmq rebuild {families.path.parent}` makes it anew from "
            "the log: nothing is lost",
            version,
            FORMAT_VERSION,
        )


_CACHE_BYTES: Final = 64 << 20
_WAL_MAX: Final = 256 << 20
_LARGE: Final = {RUNS: 64 << 20, MESSAGE_KEYS: 16 << 20, PLACES: 16 << 20}
"""Write buffers: large enough that a segment's runs are mostly repacked before the small ones reach
a file.
"""
_SMALL: Final = 8 << 20
_ROWS_AT_ONCE: Final = 10_000
"""Rows of a batch, where there may be more rows than memory has room for."""
_BLOCK: Final = 16 << 10
_ZSTD_LEVEL: Final = 3
_NO_SPACE: Final = ("No space left on device", "Disk quota exceeded")
_HELD: Final = "lock hold by current process"
_NOT_DAMAGE: Final = (
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
    "Too many open files",
    "Cannot allocate memory",
    _HELD,
    "While lock file",
)
"""Errors that keep RocksDB from being opened, but are no sign of damage."""
_ROOM_TO_REOPEN: Final = 2 << 20
"""Free bytes, beside the size of the write-ahead logs, without which RocksDB is not opened again:
after a failed attempt it could not even be read.
"""


class _Process:
    """RocksDB in this process: its threads start with the first opening and serve all later ones. A
    forked child doesn't get them.
    """

    is_used = False
    """Whether a RocksDB was opened here, or in the process of which this one is a fork."""
    is_bereft = False
    """Whether that was before the fork: RocksDB would then wait for ever for its threads."""

    @classmethod
    def forked(cls) -> None:
        """In the child."""
        if cls.is_used and not cls.is_bereft:
            end_without_destructors()
        cls.is_bereft = cls.is_used


call_in_child(_Process.forked)


def check_writable_here(folder: Path) -> None:
    """Raises `StoreForked` if this process can't write any store; called before a store's folder is
    made, or its lock taken.
    """
    if _Process.is_bereft:
        raise StoreForked(
            f"{folder} can't be opened for writing here: this process is a fork of one in "
            "which a store had been opened, and RocksDB's threads stayed there. Start it by "
            'multiprocessing\'s "spawn" or "forkserver", fork before the first store is '
            "opened, or open with read_only=True"
        )


Row = tuple[str, bytes, bytes | None]
"""Family, key and value; None: without the row."""
KeyValue = tuple[bytes, bytes | None]
"""The same without the family."""


class Batch:
    """Changes that are written together, or not at all."""

    __slots__ = ("_handles", "raw")

    def __init__(self, families: Families) -> None:
        self._handles = families.handles()
        self.raw = WriteBatch(raw_mode=True)

    def put(self, family: str, key: bytes, value: bytes) -> None:
        """Sets a key."""
        self.raw.put(key, value, self._handles[family])

    def add(self, family: str, pairs: Iterable[KeyValue]) -> None:
        """Sets keys of a family, or removes them."""
        put, delete, handle = self.raw.put, self.raw.delete, self._handles[family]
        for key, value in pairs:
            if value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def put_many(self, family: str, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Sets many keys of one family."""
        put, handle = self.raw.put, self._handles[family]
        for key, value in zip(keys, values, strict=True):
            put(key, value, handle)

    def delete(self, family: str, key: bytes) -> None:
        """Removes a key."""
        self.raw.delete(key, self._handles[family])

    def delete_range(self, family: str, first: bytes, end: bytes) -> None:
        """Removes all keys from `first` to before `end`."""
        self.raw.delete_range(first, end, self._handles[family])

    def __len__(self) -> int:
        return self.raw.len()


class _Handles(dict[str, ColumnFamily]):
    """The handles of the families; a name that is missing waits for a reopening of RocksDB."""

    def __init__(self, families: Families) -> None:
        super().__init__()
        # Weak: RocksDB of a store that nobody closed is let go without a garbage collection.
        self._families = weakref.proxy(families)

    def __missing__(self, name: str) -> ColumnFamily:
        handle: ColumnFamily = self._families.handle_again(name)
        return handle


class Families:
    """An open RocksDB; `self[name]` is a family."""

    def __init__(self, path: Path, *, read_only: bool, create: bool) -> None:
        self.path = path
        self._cache = Cache(_CACHE_BYTES)
        self.read_only = read_only
        self._handles = _Handles(self)
        self._families: dict[str, Rdict] = {}
        self._full = False
        self._closed = False
        self._reopens = 0
        self._reopening = threading.RLock()
        self._forked = False
        if not read_only:
            check_writable_here(path.parent)
        _Process.is_used = True
        release_in_child(self)
        try:
            self._open_past_iterators(create=create)
        except Exception as e:  # rocksdict raises bare Exception for every error of RocksDB
            self._drop()
            raise _not_opened(path, e) from e
        self._sync = WriteOptions()
        self._sync.sync = True

    def _open_past_iterators(self, *, create: bool) -> None:
        try:
            self._open(create=create)
        except Exception as e:
            if _HELD not in str(e):
                raise
            # Iterators of what was open before hold the lock, in exceptions that are kept, or that
            # are garbage.
            _free_iterators([o for o in gc.get_objects() if issubclass(type(o), BaseException)])
            self._open(create=create)

    def _open(self, *, create: bool) -> None:
        path, read_only = self.path, self.read_only
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        # Families of a newer format are among them: RocksDB wants all of them named, and the caller
        # must get the error about the version, not one about names.
        there = set() if create and not path.exists() else _listed(path)
        wanted = there if read_only else there | set(FAMILIES)
        options = {name: self._options(name) for name in sorted(wanted - {"default"})}
        self._db = Rdict(str(path), self._db_options(create=create), options, access)
        self._handles.update((n, self._db.get_column_family_handle(n)) for n in options)
        self._families.update((n, self._db.get_column_family(n)) for n in options)

    def _db_options(self, *, create: bool) -> Options:
        o = Options(raw_mode=True)
        o.create_if_missing(create)
        o.create_missing_column_families(True)
        o.set_max_total_wal_size(_WAL_MAX)
        o.set_keep_log_file_num(2)
        o.set_max_log_file_size(1 << 20)
        o.set_stats_dump_period_sec(0)
        o.set_stats_persist_period_sec(0)
        o.set_max_background_jobs(2)
        # By default sixteen threads a family open its few files: 6 of 10 ms for a view, and half of
        # the 32 ms that opening and closing a small store takes a processor. A store on a slow
        # disk, with many files, still opens some at once.
        o.set_max_file_opening_threads(1 if self.read_only else 4)
        return o

    def _options(self, name: str) -> Options:
        o = Options(raw_mode=True)
        o.set_write_buffer_size(_LARGE.get(name, _SMALL))
        o.set_compression_type(DBCompressionType.zstd())
        o.set_compression_options(-14, _ZSTD_LEVEL, 0, 0)
        b = BlockBasedOptions()
        b.set_block_size(_BLOCK)
        b.set_block_cache(self._cache)
        b.set_format_version(5)
        if name not in DERIVED:
            b.set_bloom_filter(10, False)
        o.set_block_based_table_factory(b)
        return o

    def handles(self) -> Mapping[str, ColumnFamily]:
        """The handle of each family, for batches. A look into it raises as reads do."""
        return self._handles

    def handle_again(self, name: str) -> ColumnFamily:
        """The handle of a family, which was not there: once RocksDB is open again. Raises DiskFull
        or StoreClosed if it is not.
        """
        if not self._reopened():
            raise self._failed(KeyError(name))
        assert name in self._handles, name
        return self._handles[name]

    def get(self, name: str, key: bytes) -> bytes | None:
        """A value, or None."""
        try:
            found: bytes | None = self._families[name].get(key)
        except Exception as e:  # as above; a family that is gone is a store that was closed
            if not self._reopened():
                raise self._failed(e) from e
            found = self._again(lambda: self._families[name].get(key))
        return found

    def iter(self, name: str, options: ReadOptions | None = None) -> RdictIter:
        """An iterator over a snapshot of a family, not yet placed. Ask `valid` for its end. A
        caller that gives options keeps them as long as the iterator.
        """
        try:
            return self._families[name].iter(options)
        except Exception as e:  # as above
            if self._reopened():
                again: RdictIter = self._again(lambda: self._families[name].iter(options))
                return again
            raise self._failed(e) from e

    def valid(self, it: RdictIter) -> bool:
        """Whether an iterator stands at a row. Raises `IndexDamaged` if damage is why it does
        not.
        """
        if it.valid():
            return True
        try:
            it.status()
        except Exception as e:  # as above
            raise self._failed(e) from e
        return False

    def rows(
        self, name: str, first: bytes, end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """A family's rows from `first` to before `end`, in order. Removed rows behind `end` are not
        visited.
        """
        options = None
        if end is not None:
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
        it = self.iter(name, options)
        try:
            it.seek(first)
            while it.valid():
                yield it.key(), it.value()
                it.next()
            self.valid(it)  # damage, if that is why it ends
        finally:
            # The traceback of an exception keeps this frame; an iterator in it would hold RocksDB's
            # lock. RocksDB reads the bound from `options`, so they go last.
            del it
            del options

    def _failed(self, why: Exception) -> StoreError:
        if _is_one_of(_NO_SPACE, why):
            self._full = True
            return _full(self.path)
        if self._forked:
            return StoreForked(f"{self.path.parent} is open in the process that forked this one")
        if self._closed:
            return StoreClosed(f"{self.path.parent} was closed; open it again")
        if not self._families:
            return _full(self.path)  # a reopening after a full disk goes on, or has failed
        if _is_one_of(_NOT_DAMAGE, why):
            return _unavailable(self.path, "can't be read", why)
        return _damaged(self.path, "can't be read", why)

    def batch(self) -> Batch:
        """An empty batch."""
        return Batch(self)

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        """Writes a batch; with `sync`, returns when it is on the disk."""
        if self._full:
            self._reopen()
        try:
            self._db.write(batch.raw, self._sync if sync else None)
        except Exception as e:  # rocksdict raises bare Exception
            raise self._refused(e) from e

    def write_many(self, rows: Iterable[Row]) -> None:
        """Writes rows in batches of bounded size; a crash may leave the first of these alone."""
        batch = self.batch()
        for family, key, value in rows:
            batch.add(family, ((key, value),))
            if len(batch) >= _ROWS_AT_ONCE:
                self.write(batch)
                batch = self.batch()
        self.write(batch)

    def write_rows(self, *rows: tuple[str, Sequence[KeyValue]]) -> None:
        """Writes rows of families, all or none. One removal alone takes half the time."""
        if self._full:
            self._reopen()
        try:
            if len(rows) == 1 and len(rows[0][1]) == 1:
                ((family, ((key, value),)),) = rows
                if value is None:
                    self._families[family].delete(key)
                    return
            batch = WriteBatch(True)  # raw_mode, whose name costs 0.1 us
            for family, pairs in rows:
                handle = self._handles[family]
                for key, value in pairs:
                    if value is None:
                        batch.delete(key, handle)
                    else:
                        batch.put(key, value, handle)
            self._db.write(batch)
        except Exception as e:  # as above
            raise self._refused(e) from e

    def _refused(self, why: Exception) -> StoreError:
        failed = self._failed(why)
        if not isinstance(failed, IndexDamaged):
            return failed
        return IndexDamaged(
            f"RocksDB in {self.path} refused a write: {why}; see to the disk, then open again"
        )

    def sync(self) -> None:
        """Returns when everything written so far is on the disk."""
        if self._full:
            self._reopen()
        try:
            self._db.flush_wal(True)
        except Exception as e:  # as above
            raise self._failed(e) from e

    def _reopen(self) -> None:
        """After a full disk: open again if there is room now, or `DiskFull`."""
        with self._reopening:
            if not self._full:
                return
            logs = sum(f.stat().st_size for f in self.path.glob("*.log"))
            if shutil.disk_usage(self.path).free < _ROOM_TO_REOPEN + logs:
                raise _full(self.path)
            self._drop()
            try:
                self._open_past_iterators(create=False)
            except Exception as e:  # as above; or an iterator still holds the old one
                raise _full(self.path) from e
            self._full = False
            self._reopens += 1

    def _again(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as e:  # as above
            raise self._failed(e) from e

    def _reopened(self) -> bool:
        """Whether the failed call may have met a RocksDB that was being reopened, so that it should
        be tried once more.
        """
        if self._forked:
            return False
        with self._reopening:
            if self._full and not self._families and not self._closed:
                self._reopen()
            return self._reopens > 0 and bool(self._families)

    def flush(self, *names: str) -> None:
        """Moves families' write buffers into files; all by default."""
        try:
            for name in names or FAMILIES:
                self._families[name].flush(wait=True)
        except Exception as e:  # as above
            raise self._failed(e) from e

    def compact(self, name: str, first: bytes | None = None, end: bytes | None = None) -> None:
        """Writes a family's files anew, without the removed rows; or those files alone that have
        rows from `first` to before `end`.
        """
        self.flush(name)
        try:
            self._families[name].compact_range(first, end)
        except Exception as e:  # as above
            raise self._failed(e) from e

    def file_bytes(self) -> dict[str, int]:
        """Bytes in SST files, by family."""
        size = "rocksdb.total-sst-files-size"
        try:
            with self._reopening:
                return {n: int(f.property_int_value(size) or 0) for n, f in self._families.items()}
        except Exception as e:  # as above
            raise self._failed(e) from e

    def close(self) -> None:
        """Closes RocksDB; no call may follow."""
        self._closed = True
        self._drop()
        # The lock must not stay for as long as somebody keeps the exception of a call that failed.
        if (error := sys.exception()) is not None:
            _free_iterators([error])

    def forked(self) -> None:
        """Abandons RocksDB in a forked child, without its files. Closing or freeing it would write
        files and wait for threads.
        """
        self._forked = self._closed = True
        for part in (*self._families.values(), *self._handles.values(), self._cache):
            keep_for_ever(part)
        if hasattr(self, "_db"):
            keep_for_ever(self._db)
            del self._db
        self._families.clear()
        blind(self.path)

    def _drop(self) -> None:
        self._families.clear()
        self._handles.clear()
        with contextlib.suppress(Exception):  # it may never have been opened
            self._db.close()


def _free_iterators(errors: list[BaseException]) -> None:
    """Frees the iterators that errors, and the errors before those, keep in the frames of their
    tracebacks: each holds RocksDB's lock.
    """
    seen = set[int]()
    while errors:
        one = errors.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        errors += [e for e in (one.__cause__, one.__context__) if e is not None]
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if frame.f_globals.get("__name__", "").startswith("kvstore."):
                with contextlib.suppress(RuntimeError):  # the frame still runs
                    frame.clear()
    gc.collect()  # some are in cycles


def _listed(path: Path) -> set[str]:
    """The families a RocksDB has; none where there is no RocksDB."""
    if not (path / "CURRENT").exists():
        return set()
    return set(Rdict.list_cf(str(path), Options(raw_mode=True)))


def _is_one_of(reasons: tuple[str, ...], why: Exception) -> bool:
    return any(reason in str(why) for reason in reasons)


def _not_opened(path: Path, why: Exception) -> DiskFull | IndexUnavailable | IndexDamaged:
    if _is_one_of(_NO_SPACE, why):
        return DiskFull(
            f"the index in {path} has no room on its disk to be opened: nothing is lost; "
            "free disk space and open it again"
        )
    if _is_one_of(_NOT_DAMAGE, why):
        return _unavailable(path, "can't be opened", why)
    return _damaged(path, "can't be opened", why)


def _unavailable(path: Path, what: str, why: Exception) -> IndexUnavailable:
    return IndexUnavailable(
        f"the index in {path} {what} now: {why}; nothing says that it is damaged: see to that, "
        "then try again"
    )


def _full(path: Path) -> DiskFull:
    return DiskFull(
        f"the index in {path} has no room on its disk; free disk space, the next write goes on"
    )


def _damaged(path: Path, what: str, why: Exception) -> IndexDamaged:
    return IndexDamaged(
        f"the index in {path} {what}: {why}; if the disk has room and is sound, `kvmq rebuild "
        f"{path.parent}` makes it anew from the log"
    )
