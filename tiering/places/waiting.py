"""Waiting: what could not be moved is left alone for a while, longer each time.

The idea: making a segment's archives reads and encodes all of it. A segment that is damaged, or
whose place is away, would cost that at each look, and come to nothing. So a failure is noted, by
the segment's name or the place's, and a worker that runs by itself tries again after 1 minute, then
2, 4 and so on, up to an hour. What somebody calls for (`Worker.run_once`) is tried at once.

Invariants: what went well is not waited for; what is said in the file is what a worker knows; a
file that can't be read, or written, changes no move.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from kvstore.clock import Clock, whole_ms
from kvstore.errors import StoreError
from kvstore.files import Files
from tiering.places.refusals import told_of

WORK: Final = "tiering"
"""The worker's folder, in the store's."""
FILE: Final = "waiting.json"
"""In the worker's folder."""
FIRST: Final = 60.0
"""Seconds until something is tried a second time."""
MOST: Final = 3600.0
_log = logging.getLogger("kvmq")


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is left alone: a segment ("segment 5"), or a place by its path or URL. `tiers`
    are those that nothing comes to meanwhile, `tries` how often it went wrong, `until` when it is
    tried again (ms since the epoch).
    """

    what: str
    why: str
    tiers: list[str]
    tries: int
    until: int


class Waits:
    """What a worker leaves alone."""

    def __init__(self, path: Path, files: Files, clock: Clock) -> None:
        self._path = path
        self._files = files
        self._clock = clock
        self._all: dict[str, Wait] = {}
        self._over: dict[str, float] = {}
        """By what is waited for when that is over, on the monotonic clock."""
        self._noted: list[Wait] | None = None

    def begin(self, *, anew: bool) -> None:
        """A run begins; `anew`: it tries everything at once, and counts from nothing."""
        if anew:
            self._all.clear()
            self._over.clear()

    def is_on(self, what: str) -> bool:
        """Whether something is to be left alone now."""
        return self._clock.monotonic() < self._over.get(what, 0.0)

    def why(self, what: str) -> str:
        """Why something is left alone."""
        return self._all[what].why

    def failed(self, what: str, tiers: Iterable[str], why: Exception) -> None:
        """It went wrong; it is left alone for twice as long as the last time."""
        before = self._all.get(what)
        tries = before.tries + 1 if before is not None else 1
        seconds = min(MOST, FIRST * 2.0 ** min(tries - 1, 32))
        until = self._clock.now_ms() + whole_ms(seconds)
        self._over[what] = self._clock.monotonic() + seconds
        self._all[what] = Wait(
            what=what, why=told_of(why)[:1000], tiers=sorted(set(tiers)), tries=tries, until=until
        )

    def over(self, what: str) -> None:
        """It went well."""
        self._all.pop(what, None)
        self._over.pop(what, None)

    def keep(self, there: Collection[str]) -> None:
        """Forget segments that are not there any more."""
        for what in [w for w in self._all if w.startswith("segment ") and w not in there]:
            self.over(what)

    def note(self) -> None:
        """Write down what is left alone, if that has changed."""
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
            _log.warning("%s: what is left alone is not noted: %s", self._path, e)


def read_waits(path: Path, files: Files) -> list[Wait]:
    """What the last run of a worker left alone; nothing, if that can't be told."""
    try:
        if files.size(path) is None:
            return []
        return msgspec.json.decode(files.read(path), type=list[Wait])
    except (OSError, StoreError, msgspec.MsgspecError, UnicodeDecodeError):
        return []
