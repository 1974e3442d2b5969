"""Trusted clock: the state of `trusted`, kept in a small file between looks and between processes.

Invariant: losing the file costs the doubt and nothing else: as at a store's first use, the wall
clock is then believed, even if it has leapt.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from kvstore.clock import Clock
from kvstore.errors import StoreError
from kvstore.files import Files
from tiering.policy.trusted import Trusted, observe

_log = logging.getLogger("kvmq")


def clock_before(path: Path, files: Files) -> Trusted | None:
    """The state of the time at a worker's last look; None if there was none."""
    if files.size(path) is not None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode(files.read(path), type=Trusted)
    return None


class TrustedClock:
    """The time by which a worker deletes; `doubt` in seconds, see `Policy.clock_doubt`."""

    def __init__(self, path: Path, files: Files, clock: Clock, doubt: float) -> None:
        self._path = path
        self._files = files
        self._clock = clock
        self._doubt = doubt
        self._known: Trusted | None = None
        self._looked_at = 0.0

    def now_ms(self) -> int:
        """Milliseconds since the epoch, never ahead of the wall clock."""
        before = self._known or clock_before(self._path, self._files)
        now = self._clock.monotonic()
        elapsed = now - self._looked_at if self._known is not None else None
        self._looked_at = now
        found = self._known = observe(before, self._clock.now_ms(), elapsed, self._doubt)
        try:
            self._files.make_dir(self._path.parent)
            self._files.write_whole(self._path, msgspec.json.encode(found))
        except (OSError, StoreError) as e:
            _log.warning("%s: the time is not noted: %s", self._path, str(e))
        return found.now_ms
