"""History: a line for each thing that workers did to a store, for people and programs.

The idea: one JSON object a line, with the time, the deed and its amounts. A file that has grown too
large is written anew without its oldest half.

Invariant: nothing depends on the history; a line that can't be read is passed over.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from kvstore.clock import Clock
from kvstore.errors import StoreError
from kvstore.files import Files

_BYTES_MAX: Final = 1 << 20
_log = logging.getLogger("kvmq")


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One deed: `what` is "archived", "cold", "merged", "parted", "reencrypted", "expired",
    "removed", "erased" or "failed"; `at` is ms since the epoch, `seconds` how long it took.
    """

    at: int
    what: str
    source: str
    archives: list[str] = []
    messages: int = 0
    raw_bytes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    note: str = ""


class History:
    """The lines in the history file."""

    def __init__(self, path: Path, files: Files, clock: Clock) -> None:
        self._path = path
        self._files = files
        self._clock = clock

    def add(self, what: str, source: str, **figures: object) -> HistoryEntry:
        """Adds a line for something that was done now."""
        done = msgspec.convert(
            {"at": self._clock.now_ms(), "what": what, "source": source, **figures}, HistoryEntry
        )
        try:
            self._write(msgspec.json.encode(done) + b"\n")
        except (OSError, StoreError) as e:
            # The deed is done: a full disk must not make it look otherwise.
            _log.warning("%s: %s of %s is not noted: %s", self._path, what, source, e)
        return done

    def _write(self, line: bytes) -> None:
        before = self._read()
        if len(before) > _BYTES_MAX:
            half = before.find(b"\n", len(before) // 2) + 1
            before = before[half:]
        self._files.make_dir(self._path.parent)
        self._files.write_whole(self._path, before + line)

    def last(self, count: int = 100) -> list[HistoryEntry]:
        """The newest entries, oldest first."""
        out = []
        for line in self._read().splitlines()[-count:]:
            try:
                out.append(msgspec.json.decode(line, type=HistoryEntry))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
        return out

    def _read(self) -> bytes:
        return self._files.read(self._path) if self._files.size(self._path) is not None else b""
