"""Trusted time: the time by which messages are deleted: the wall clock, less its leaps.

The idea: durations are measured on store times against the wall clock. An operator, a dead battery
or a wrong time server may set that forward by a year: then everything would be over at once. So the
time that counts here follows the wall clock only as fast as the monotonic clock shows time to pass.
A lead of the wall clock is a leap, and is believed only after it has lasted for `clock_doubt`. The
time between two processes is a leap as well (the machine was off, or its clock was set: nobody can
tell): after a long stop due deletions wait for `clock_doubt` once more. A clock that goes back
takes the trusted time back with it, at once. The known state is kept in a small file, between looks
and between processes.

Store times themselves never go back (the log sees to that). So a message put while the clock was
ahead is kept longer; a message put while it was behind has the time of the message before it.

Invariants: the trusted time is never ahead of the wall clock; a leap forward that is taken back
within `clock_doubt` never moves it; losing the file costs the doubt and nothing else: as at a
store's first use, the wall clock is then believed, even if it has leapt.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from kvstore.clock import Clock
from kvstore.errors import StoreError
from kvstore.files import Files

DRIFT: Final = 1 / 1000
"""How much faster than the monotonic clock the wall clock may run without a leap; adjusting a clock
slowly (slewing) stays below.
"""
DRIFT_MAX_MS: Final = 60_000
JITTER_MS: Final = 1_000
"""A difference of up to 1,000 ms is no leap: the two clocks are not read at one moment."""


class Trusted(msgspec.Struct, frozen=True):
    """The known state of the time; the caller keeps it from one process to the next.

    `now_ms` is the trusted time, ms since the epoch; `wall_ms` the wall clock at that look. If the
    wall clock is ahead by a leap, `doubted_ms` is the earliest time that the leapt clock has shown,
    moved on with the time that passed since, and `lasted_ms` is how long the leap has lasted (both
    0: there is no leap).
    """

    now_ms: int
    wall_ms: int
    doubted_ms: int = 0
    lasted_ms: int = 0


def observe(
    before: Trusted | None, wall_ms: int, elapsed: float | None, clock_doubt: float
) -> Trusted:
    """The trusted time at a new look at the clock. Pure.

    `elapsed` are seconds on the monotonic clock since `before`; None if that was another process's.
    `before` None: nothing is known, as at a store's first use; the wall clock is believed.
    `clock_doubt` is the policy's, in seconds.
    """
    if before is None or wall_ms <= before.now_ms:
        return Trusted(wall_ms, wall_ms)
    passed = 0 if elapsed is None else int(elapsed * 1000)
    slack = JITTER_MS + min(int(passed * DRIFT), DRIFT_MAX_MS)
    now = before.now_ms + passed
    if wall_ms <= now + slack:
        return Trusted(wall_ms, wall_ms)
    if not before.lasted_ms or wall_ms + slack < before.doubted_ms + passed:
        # A leap begins; or one was taken back in part, and the rest is another leap.
        return _doubt(now, wall_ms, clock_doubt)
    # A second leap meanwhile is not believed together with the first.
    doubted = min(before.doubted_ms + passed, wall_ms)
    # Time that no process saw pass counts as the wall clock says, up to half the doubt: one look at
    # a clock that leapt is never enough, and short runs once a day still make progress.
    unseen = min(max(wall_ms - before.wall_ms, 0), int(clock_doubt * 500))
    lasted = before.lasted_ms + (unseen if elapsed is None else passed)
    if lasted <= clock_doubt * 1000:
        return Trusted(now, wall_ms, doubted, lasted)
    if wall_ms <= doubted + slack:
        return Trusted(wall_ms, wall_ms)
    return _doubt(doubted, wall_ms, clock_doubt)


def _doubt(now: int, wall_ms: int, clock_doubt: float) -> Trusted:
    if clock_doubt == 0:
        return Trusted(wall_ms, wall_ms)
    return Trusted(now, wall_ms, wall_ms, 1)


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
