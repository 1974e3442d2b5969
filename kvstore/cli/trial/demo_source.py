"""The demo's input: lines of files as messages.

The idea: a file is read each time it is asked for, so that the store is held against the files
themselves. The queue of a message follows from its file alone.

Invariant: each reading gives the same messages, as long as nobody changes the files.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from kvstore import Message

QUEUES: Final = 8
"""Of each topic."""


class Source:
    """Lines of files as messages: the same messages at each reading, each with its queue."""

    def __init__(self, files: Sequence[Path], limit: int | None) -> None:
        self.root = Path(sysconfig.get_path("stdlib"))
        self.files = list(files) or _library(self.root)
        self.title = ", ".join(map(str, files)) or f"the standard library in {self.root}"
        self._limit = limit

    def messages(self) -> Iterator[Message]:
        """One message a line: topic = module, key = file, tag = first word."""
        return islice(self._all(), self._limit)

    def _all(self) -> Iterator[Message]:
        seen: Counter[str] = Counter()
        for path in self.files:
            is_inside = path.is_relative_to(self.root)
            name = path.relative_to(self.root) if is_inside else Path(path.name)
            topic = _only(name.parts[0].removesuffix(".py"), "_-")[:127] or "lines"
            key = "_".join(name.as_posix().split())
            queue = seen[topic] % QUEUES
            seen[topic] += 1
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    first = (line.split(maxsplit=1) or [b""])[0].decode(errors="replace")
                    yield Message(
                        topic, line.rstrip(b"\r\n"), queue=queue, keys=(key,),
                        tag=_only(first, "_")[:32] or "other", properties={"line": str(number)},
                    )  # fmt: skip


def _library(root: Path) -> list[Path]:
    other = {"site-packages", "dist-packages"}
    found = (path for path in root.rglob("*.py") if not other & set(path.relative_to(root).parts))
    return sorted(path for path in found if path.is_file())


def _only(text: str, besides: str) -> str:
    return "".join(c for c in text if c.isascii() and (c.isalnum() or c in besides))


def at_hand(given: Path, folder: Path) -> Path:
    """A file that can be read twice: standard input is copied into the folder."""
    if str(given) != "-":
        return given
    path = folder / "stdin.txt"
    with path.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    return path
