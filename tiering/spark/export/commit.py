"""Commits files so that they appear together, once, whatever ends the process in between.

The idea: messages lie where every reader of partitioned Parquet looks. The export's own notes and
files that are not committed lie in folders that begin with `_`, where no reader looks. Files are
written there, and a manifest of all changes beside them. The manifest is renamed to the pending
ones, and that is the commit: from then on its steps will be done, by the next run if need be. The
files get their places by renaming, tables of Iceberg are told, old files that these replace go, and
the manifest is filed as done. The next run finishes manifests that are pending, and removes files
that were staged without one.

Invariants: a name is committed once: a second request is told that it is there. A manifest alone
says all there is to do, and each of its steps can be done again. New files are in place before
those they replace go, so that nothing is missing at any moment; for that moment a reader may see
both. The names of batches, and of compactions, sort in the order of their making.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import msgspec

from kvstore.errors import StoreError
from tiering.errors import ExportBroken, ExportBusy
from tiering.spark.export.hadoop import Folders

NOTES: Final = "_kvmq"
CHECKPOINT: Final = f"{NOTES}/checkpoint"
"""Spark's own: how far the stream has come."""
STAGING: Final = f"{NOTES}/staging"
"""Files that are not committed yet, a folder for each batch or compaction."""
PENDING: Final = f"{NOTES}/pending"
"""Manifests that are committed, and may not be carried out yet."""
DONE: Final = f"{NOTES}/done"
"""Manifests that are carried out."""
SCHEMAS: Final = f"{NOTES}/schemas"
SETTINGS: Final = f"{NOTES}/export.json"
RUN: Final = f"{NOTES}/run.json"
REJECTED: Final = "_kvmq_rejected"
"""Messages whose bodies don't fit their topic's schema."""
OUT: Final = "out"
ASIDE: Final = "rejected"
PARQUET: Final = ".parquet"
MANIFEST: Final = ".json"
BATCH: Final = "batch-"
COMPACTION: Final = "compaction-"


def batch_name(batch: int) -> str:
    """The name of a batch of the stream."""
    return f"{BATCH}{batch:020}"


def compaction_name(number: int) -> str:
    """The name of a compaction."""
    return f"{COMPACTION}{number:020}"


def number_of(name: str) -> int:
    """The number of a batch or compaction, by its name or that of its manifest; -1 for a file that
    somebody else has put there.
    """
    digits = name.removesuffix(MANIFEST).rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def schema_name(topic: str) -> str:
    """The file of a topic's pinned schema."""
    return f"{SCHEMAS}/{quote(topic, safe='')}{MANIFEST}"


def staged(name: str, part: str) -> str:
    """Where the files of a batch lie before it is committed."""
    return f"{STAGING}/{name}/{part}"


# --- manifests ------------------------------------------------------------------------------------


VERSION = 1


class Move(msgspec.Struct, frozen=True):
    """A file that gets its place: its name in the staging folder, and its name in the export."""

    staged: str
    to: str
    size: int
    messages: int


class Append(msgspec.Struct, frozen=True):
    """Files that become a part of a table of Iceberg, once they are in place; `topic` is the one
    whose schema the table has, or empty.
    """

    table: str
    topic: str
    files: tuple[str, ...]


class Counted(msgspec.Struct):
    """The exported amounts of a topic: messages and files, their size in bytes, and how many
    messages were set aside.
    """

    messages: int = 0
    files: int = 0
    bytes: int = 0
    rejected: int = 0

    def add(self, other: Counted) -> None:
        """Adds another's amounts."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a commit. `removes` are files that the moved ones replace; `of` says which
    messages a batch has, as the stream's checkpoint says it, if there is one.
    """

    name: str
    moves: tuple[Move, ...] = ()
    removes: tuple[str, ...] = ()
    appends: tuple[Append, ...] = ()
    topics: dict[str, Counted] = {}
    of: str | None = None
    version: int = VERSION

    def encoded(self) -> bytes:
        """As a file has it."""
        return msgspec.json.format(msgspec.json.encode(self))


def decoded(data: bytes, where: str) -> ExportManifest:
    """A manifest from its file. Raises ExportBroken if it is not one of this version."""
    try:
        found = msgspec.json.decode(data, type=ExportManifest)
    except msgspec.DecodeError as e:
        raise ExportBroken(f"{where} is no manifest of an export ({e}); put it back") from e
    if found.version > VERSION:
        raise ExportBroken(
            f"{where} is of version {found.version}, and this kvmq knows {VERSION}: use a newer one"
        )
    return found


# --- commits --------------------------------------------------------------------------------------


KEPT: Final = 20
"""The number of manifests of each kind that are kept when they are done. The newest is needed."""
_MANIFEST: Final = "manifest"
"""The prefix of the name of a manifest that is not committed yet."""


class _Turn(msgspec.Struct, frozen=True):
    """The run whose turn it is."""

    run: str


AppendTo = Callable[[str, Append], object]
"""Adds files to a table, unless that was done under this name."""


class Commits:
    """The commits of one export's folder. `begin` comes first."""

    def __init__(self, folders: Folders, append: AppendTo | None = None) -> None:
        self._folders = folders
        self._append = append
        self._run = uuid.uuid4().hex

    def begin(self) -> None:
        """Takes over from an earlier run: finishes what is committed, drops what is not."""
        self._folders.write(RUN, msgspec.json.encode(_Turn(self._run)))
        for file in self._folders.names(PENDING):
            self._finish(self._read(f"{PENDING}/{file}"))
        for name in self._folders.names(STAGING):
            # From here on an earlier run can't commit its staged files any more; or just has.
            for part in self._folders.names(f"{STAGING}/{name}"):
                if part.startswith(_MANIFEST):
                    self._folders.delete(staged(name, part))
            if not self._folders.exists(f"{PENDING}/{name}{MANIFEST}"):
                self._folders.delete(f"{STAGING}/{name}")

    def last(self, kind: str) -> int:
        """The newest committed number of `BATCH` or `COMPACTION`; -1 for none."""
        found = self._folders.names(PENDING) + self._folders.names(DONE)
        return max((number_of(one) for one in found if one.startswith(kind)), default=-1)

    def committed(self, name: str) -> ExportManifest | None:
        """The manifest committed under a name; None if there is none, or none any more."""
        for folder in (PENDING, DONE):
            file = f"{folder}/{name}{MANIFEST}"
            if self._folders.exists(file):
                return self._read(file)
        return None

    def once(self, name: str, stage: Callable[[], ExportManifest]) -> ExportManifest | None:
        """Commits the files that `stage` makes below the name's staging folder, by the manifest
        that it returns. Returns None if the name was committed before; then `stage` is not called.
        Raises ExportBusy if another export to the same place has begun since; ExportBroken.
        """
        kind = name.rpartition("-")[0] + "-"
        pending = f"{PENDING}/{name}{MANIFEST}"
        if number_of(name) <= self.last(kind):
            if self._folders.exists(pending):
                self._finish(self._read(pending))
            return None
        self._folders.delete(f"{STAGING}/{name}")
        manifest = staged(name, f"{_MANIFEST}-{self._run}")
        try:
            made = stage()
            self._folders.write(manifest, made.encoded())
            # A run that takes over from here on finds the manifest, and removes it: then this
            # fails.
            self._mine()
            self._folders.rename(manifest, pending)
        except Exception:
            # If another run has begun and removed files of this one, that is the error to raise.
            self._mine()
            raise
        self._finish(made)
        self._trim(kind)
        return made

    def _mine(self) -> None:
        found = self._folders.read(RUN)
        if found is None or msgspec.json.decode(found, type=_Turn).run != self._run:
            raise ExportBusy(
                f"another export to {self._folders.root} has begun; let one at a time run there. "
                "Nothing of this batch was exported by this one"
            )

    def _read(self, name: str) -> ExportManifest:
        return decoded(self._folders.read(name) or b"", self._folders.at(name))

    def _finish(self, made: ExportManifest) -> None:
        """Does the steps of a manifest, and files it as done."""
        folders = self._folders
        for move in made.moves:
            # A name is of one file only: if the file is there, it was moved before. (On an object
            # store a crash may leave both.)
            if folders.exists(move.to):
                continue
            if folders.exists(move.staged):
                self._renamed(move.staged, move.to)
            elif not folders.exists(move.to):
                raise ExportBroken(
                    f"{made.name} is committed, and its file {folders.at(move.to)} is gone; "
                    f"put it back, or export to a new folder"
                )
        for append in made.appends:
            assert self._append is not None, "the settings say what kind of export this is"
            self._append(made.name, append)
        for old in made.removes:
            folders.delete(old)
        manifest = f"{made.name}{MANIFEST}"
        if folders.exists(f"{DONE}/{manifest}"):
            # Removed by another run, or by a rename that copies before it removes.
            folders.delete(f"{PENDING}/{manifest}")
        else:
            self._renamed(f"{PENDING}/{manifest}", f"{DONE}/{manifest}")
        folders.delete(f"{STAGING}/{made.name}")

    def _renamed(self, name: str, to: str) -> None:
        """Renames a committed file, unless a run that begins just now has done it."""
        try:
            self._folders.rename(name, to)
        except StoreError:
            if not self._folders.exists(to):
                raise

    def _trim(self, kind: str) -> None:
        filed = [one for one in self._folders.names(DONE) if one.startswith(kind)]
        for one in filed[:-KEPT]:
            self._folders.delete(f"{DONE}/{one}")
