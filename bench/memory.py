"""Resident memory of a process that is not a mapped file: what a store costs above its log."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_INTERVAL = 0.02


def anonymous_bytes(pid: int | str = "self") -> int:
    """RssAnon: heap, stacks and arenas; pages of the mapped log are RssFile and RssShmem.

    The kernel may drop those at any time. `Private_Clean` and `Private_Dirty` of smaps_rollup would
    count them, unless another process maps the log as well.
    """
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/{pid}/status has no RssAnon")


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
