"""A place for archives that can be held up, and counts what it is asked."""

from __future__ import annotations

import gc
import sys
import threading
import time
from types import FrameType
from typing import Any

from kvstore import Store
from tests.support import inside_tiering
from tests.tiering.catalog.moving import tiers
from tiering.places.place import Place

_LOOKING = threading.Lock()


class Gate:
    """A place whose reads wait while it is shut; `asked` are the keys, and which bytes of each."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._open = threading.Event()
        self._open.set()
        self.asked: list[tuple[str, int, int]] = []
        self.waiting = threading.Semaphore(0)
        """Released by each read that finds it shut."""
        self.company: list[threading.Thread] = []
        """A read goes on only once all of these wait for something to come, or are at the gate."""
        self._here: set[int] = set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def source(self, key: str, size: int | None = None) -> Any:
        return _Source(self, key, self._place.source(key, size))

    def passed(self, key: str, at: int, size: int) -> None:
        self.asked.append((key, at, size))
        if not self._open.is_set():
            self.waiting.release()
        assert self._open.wait(60)
        self._here.add(threading.get_ident())
        while self._company_runs():
            time.sleep(0.001)
        self._here.remove(threading.get_ident())

    def _company_runs(self) -> bool:
        awaited = [one for one in self.company if one.ident not in self._here]
        frames = frames_of_threads() if awaited else {}
        return any(
            thread.ident is None
            # The number of a thread that has ended may be another's by now.
            or (thread.is_alive() and thread.ident in frames and not waits(frames[thread.ident]))
            for thread in awaited
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)


def frames_of_threads() -> dict[int, FrameType]:
    """By the threads' numbers. Python 3.11 before .9 waits for itself for ever where it collects
    garbage meanwhile: https://github.com/python/cpython/issues/106883
    """
    with _LOOKING:  # else one thread's end of the look would let another one's collect garbage
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            gc.enable()


def waits(frame: FrameType) -> bool:
    """Whether a thread, which is at this frame, waits for an event that is not set yet."""
    awaited = frame.f_locals.get("self")
    is_set = isinstance(awaited, threading.Event) and awaited.is_set()
    return frame.f_code.co_name == "wait" and not is_set


class _Source:
    def __init__(self, gate: Gate, key: str, source: Any) -> None:
        self._gate = gate
        self._key = key
        self._source = source

    def read(self, at: int, size: int) -> bytes:
        self._gate.passed(self._key, at, size)
        found: bytes = self._source.read(at, size)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def gated(store: Store) -> Gate:
    """Have a store, which has not read any archive yet, read them by a gate, which is open."""
    found = tiers(store)
    row = found.rows()[0]
    gate = Gate(found.place(row))
    inside_tiering.set_place(found, row.place, gate)
    return gate
