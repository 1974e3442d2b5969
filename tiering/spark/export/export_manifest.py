"""Manifest: all changes of a batch or a compaction, in one object.

The idea: once a manifest is there, its steps will be done, by the next run if need be; before,
nothing has happened. It has the files' sizes and messages too, of which the report is made.

Invariant: a manifest alone says all there is to do; each of its steps may be done again.
"""

from __future__ import annotations

import msgspec

from tiering.errors import ExportBroken

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
        self.messages += other.messages
        self.files += other.files
        self.bytes += other.bytes
        self.rejected += other.rejected


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
