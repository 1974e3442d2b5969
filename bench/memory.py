"""Resident memory of this process that is not a mapped file: what a store costs above its log."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_INTERVAL = 0.02


def anonymous_bytes() -> int:
    """RssAnon: heap, stacks and arenas; pages of the mapped log are RssFile and RssShmem."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


class Peak:
    """Samples the memory of this process while a block runs; `bytes` is the most that was seen."""

    def __init__(self) -> None:
        self.before = anonymous_bytes()
        self.bytes = self.before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self.bytes = max(self.bytes, anonymous_bytes())
