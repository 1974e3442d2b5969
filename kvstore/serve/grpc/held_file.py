"""The held file: which locks are to be renewed for which client, for the next start of the server.

The idea: the store has the locks, and which client holds them only the server knows. So it writes
that down: when it stops, and from time to time for messages that are held for long. The next server
takes the clients in the file for alive until they had time to say so.

Invariants: the file is replaced whole; one that can't be read costs renewals, never messages, since
their locks run out.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from kvstore.errors import StoreError
from kvstore.files import Files
from kvstore.serve.grpc.clients import ClientKey

NAME: Final = "held-locks.msgpack"
_VERSION: Final = 2
_log = logging.getLogger("kvmq")


class HeldLocks(msgspec.Struct, frozen=True, array_like=True):
    """The receipts of one answer that a client still holds, and until when they are renewed, in ms
    since the epoch.
    """

    client: ClientKey
    receipts: list[str]
    until_ms: int


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    version: int
    held: list[HeldLocks]


class HeldFile:
    """The file in a store's folder; see the module."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._path = folder / NAME
        self._files = files
        self._is_there = files.size(self._path) is not None

    def read(self) -> list[HeldLocks]:
        """The locks that the last server wrote; none if there is no file that can be read."""
        if not self._is_there:
            return []
        try:
            found = msgspec.msgpack.decode(self._files.read(self._path), type=_Whole)
        except (OSError, msgspec.MsgspecError) as e:
            _log.warning(
                "kvmq can't read %s, so it renews no lock of before: %s", self._path, str(e)
            )
            return []
        return found.held if found.version == _VERSION else []

    def write(self, held: list[HeldLocks]) -> None:
        """Replaces the file; without locks there is none."""
        try:
            if held:
                whole = msgspec.msgpack.encode(_Whole(_VERSION, held))
                self._files.write_new(self._path, [whole], replace=True)
            elif self._is_there:
                self._files.remove(self._path)
        except (OSError, StoreError) as e:
            _log.warning("kvmq can't write %s: %s", self._path, str(e))
        else:
            self._is_there = bool(held)
