"""Commits files so that they appear together, once, whatever ends the process in between.

The idea: files are written to a folder that no reader looks at. Then one object, the manifest, is
written, and that is the commit. Then the files get their places by renaming, old ones that they
replace go, tables of Iceberg are told, and the manifest is filed as done. The next run finishes
manifests that are pending, and removes files that were staged without one.

Invariants: a name is committed once: a second request is told that it is there. Each step of a
manifest can be done again. New files are in place before those they replace go, so that nothing is
missing at any moment; for that moment a reader may see both.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from kvstore.errors import StoreError
from tiering.errors import ExportBroken, ExportBusy
from tiering.spark.export import export_layout
from tiering.spark.export.export_layout import staged
from tiering.spark.export.export_manifest import Append, ExportManifest, decoded
from tiering.spark.export.hadoop import Folders

KEPT: Final = 20
"""The number of manifests of each kind that are kept when they are done. The newest is needed."""
_MANIFEST: Final = "manifest"
"""The prefix of the name of a manifest that is not committed yet."""


class _Run(msgspec.Struct, frozen=True):
    """The run whose turn it is."""

    run: str


class TableKeeper(Protocol):
    """Adds committed files to tables."""

    def append(self, name: str, append: Append) -> None:
        """Adds files to a table, unless that was done under this name."""
        ...


class Commits:
    """The commits of one export's folder. `begin` comes first."""

    def __init__(self, folders: Folders, tables: TableKeeper | None = None) -> None:
        self._folders = folders
        self._tables = tables
        self._run = uuid.uuid4().hex

    def begin(self) -> None:
        """Takes over from an earlier run: finishes what is committed, drops what is not."""
        self._folders.write(export_layout.RUN, msgspec.json.encode(_Run(self._run)))
        for file in self._folders.names(export_layout.PENDING):
            self._finish(self._read(f"{export_layout.PENDING}/{file}"))
        for name in self._folders.names(export_layout.STAGING):
            # From here on an earlier run can't commit its staged files any more; or just has.
            for part in self._folders.names(f"{export_layout.STAGING}/{name}"):
                if part.startswith(_MANIFEST):
                    self._folders.delete(staged(name, part))
            if not self._folders.exists(f"{export_layout.PENDING}/{name}{export_layout.MANIFEST}"):
                self._folders.delete(f"{export_layout.STAGING}/{name}")

    def last(self, kind: str) -> int:
        """The newest committed number of `export_layout.BATCH` or `COMPACTION`; -1 for none."""
        found = self._folders.names(export_layout.PENDING) + self._folders.names(export_layout.DONE)
        return max(
            (export_layout.number_of(one) for one in found if one.startswith(kind)), default=-1
        )

    def committed(self, name: str) -> ExportManifest | None:
        """The manifest committed under a name; None if there is none, or none any more."""
        for folder in (export_layout.PENDING, export_layout.DONE):
            file = f"{folder}/{name}{export_layout.MANIFEST}"
            if self._folders.exists(file):
                return self._read(file)
        return None

    def once(self, name: str, stage: Callable[[], ExportManifest]) -> ExportManifest | None:
        """Commits the files that `stage` makes below the name's staging folder, by the manifest
        that it returns. Returns None if the name was committed before; then `stage` is not called.
        Raises ExportBusy if another export to the same place has begun since; ExportBroken.
        """
        kind = name.rpartition("-")[0] + "-"
        pending = f"{export_layout.PENDING}/{name}{export_layout.MANIFEST}"
        if export_layout.number_of(name) <= self.last(kind):
            if self._folders.exists(pending):
                self._finish(self._read(pending))
            return None
        self._folders.delete(f"{export_layout.STAGING}/{name}")
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
        found = self._folders.read(export_layout.RUN)
        if found is None or msgspec.json.decode(found, type=_Run).run != self._run:
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
            assert self._tables is not None, "the settings say what kind of export this is"
            self._tables.append(made.name, append)
        for old in made.removes:
            folders.delete(old)
        manifest = f"{made.name}{export_layout.MANIFEST}"
        if folders.exists(f"{export_layout.DONE}/{manifest}"):
            # Removed by another run, or by a rename that copies before it removes.
            folders.delete(f"{export_layout.PENDING}/{manifest}")
        else:
            self._renamed(f"{export_layout.PENDING}/{manifest}", f"{export_layout.DONE}/{manifest}")
        folders.delete(f"{export_layout.STAGING}/{made.name}")

    def _renamed(self, name: str, to: str) -> None:
        """Renames a committed file, unless a run that begins just now has done it."""
        try:
            self._folders.rename(name, to)
        except StoreError:
            if not self._folders.exists(to):
                raise

    def _trim(self, kind: str) -> None:
        filed = [one for one in self._folders.names(export_layout.DONE) if one.startswith(kind)]
        for one in filed[:-KEPT]:
            self._folders.delete(f"{export_layout.DONE}/{one}")
