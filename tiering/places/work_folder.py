"""Work folder: the folder in a store that belongs to its worker: half-made archives, and waits.

The idea: archives are made, and copied, in folders of their own. The next process that works in
such a folder clears it. A half-made archive may hold messages that are to be erased, so files are
overwritten.

Making a segment's archives reads and encodes the whole segment. A damaged segment, or one whose
place is away, would cost that at each look, for nothing. So a failure is noted, by the segment's
name or the place's, and a worker that runs by itself tries again after 1 minute, then 2, 4 and so
on, up to an hour. A run that a caller asks for (`Worker.run_once`) tries everything at once.

Invariants:

- No file that a catalog names lies in a folder that is cleared.
- A success ends the wait.
- After a run the file says what the worker knows, unless it can't be written.
- A file that can't be read or written changes no move.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from kvstore.clock import Clock, whole_ms
from kvstore.errors import StoreError
from kvstore.files import Files
from tiering.places.failures import told_of
from tiering.places.objects import SUFFIX

ATTACH: Final = "attach/made"
"""The folder where an attach makes archives, within the worker's folder."""
ATTACH_NOTES: Final = "attach/intents"
"""The folder of an attach's intents, within the worker's folder."""


def overwrite_all(folder: Path, files: Files) -> list[str]:
    """Overwrites and removes every file in a folder, and the folder; returns their names there."""
    removed = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file():
            files.erase(path)
            removed.append(str(path.relative_to(folder)))
    shutil.rmtree(folder, ignore_errors=True)
    return removed


WORK: Final = "tiering"
"""The worker's folder, within the store's."""
FILE: Final = "waiting.json"
"""The file's name within the worker's folder."""
FIRST: Final = 60.0
"""Seconds until the second try."""
MOST: Final = 3600.0
_log = logging.getLogger("kvmq")


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is left alone: a segment ("segment 5"), an archive by its name in its place,
    or a place by its path or URL. `tiers`
    are the tiers that get nothing meanwhile, `tries` the number of failures, `until` the time of
    the next try (ms since the epoch).
    """

    what: str
    why: str
    tiers: list[str]
    tries: int
    until: int


class Waits:
    """The things that a worker leaves alone."""

    def __init__(self, path: Path, files: Files, clock: Clock) -> None:
        self._path = path
        self._files = files
        self._clock = clock
        self._all: dict[str, Wait] = {}
        self._over: dict[str, float] = {}
        """The end of each wait, on the monotonic clock."""
        self._noted: list[Wait] | None = None

    def begin(self, *, anew: bool) -> None:
        """Begins a run. With `anew` it tries everything at once, and counts failures from 0."""
        if anew:
            self._all.clear()
            self._over.clear()

    def is_on(self, what: str) -> bool:
        """Whether something is to be left alone now."""
        return self._clock.monotonic() < self._over.get(what, 0.0)

    def why(self, what: str) -> str:
        """The reason why something is left alone."""
        return self._all[what].why

    def failed(self, what: str, tiers: Iterable[str], why: Exception) -> None:
        """Notes a failure; the next wait is twice as long as the last one."""
        before = self._all.get(what)
        tries = before.tries + 1 if before is not None else 1
        seconds = min(MOST, FIRST * 2.0 ** min(tries - 1, 32))
        until = self._clock.now_ms() + whole_ms(seconds)
        self._over[what] = self._clock.monotonic() + seconds
        self._all[what] = Wait(
            what=what, why=told_of(why)[:1000], tiers=sorted(set(tiers)), tries=tries, until=until
        )

    def over(self, what: str) -> None:
        """Notes a success."""
        self._all.pop(what, None)
        self._over.pop(what, None)

    def keep(self, there: Collection[str]) -> None:
        """Forgets segments and archives that are not `there` any more."""
        passing = [w for w in self._all if w.startswith("segment ") or w.endswith(SUFFIX)]
        for what in passing:
            if what not in there:
                self.over(what)

    def note(self) -> None:
        """Writes the waits to the file, if they have changed."""
        waits = sorted(self._all.values(), key=lambda wait: wait.what)
        if waits == self._noted:
            return
        try:
            if self._noted is None and not waits and self._files.size(self._path) is None:
                return
            self._files.make_dir(self._path.parent)
            self._files.write_whole(self._path, msgspec.json.encode(waits))
            self._noted = waits
        except (OSError, StoreError) as e:
            _log.warning("%s: what is left alone is not noted: %s", self._path, str(e))


def read_waits(path: Path, files: Files) -> list[Wait]:
    """The waits that a worker's last run left; none, if the file can't be read."""
    try:
        if files.size(path) is None:
            return []
        return msgspec.json.decode(files.read(path), type=list[Wait])
    except (OSError, StoreError, msgspec.MsgspecError, UnicodeDecodeError):
        return []
