"""Work for tasks: functions of a module, as the worker's are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kvstore.errors import ArchiveDamaged
from tiering.executor.segment_encoder import EncodedSegment, SegmentJob, segment_task


def doubled(number: int) -> int:
    return 2 * number


def summed(*numbers: int) -> int:
    return sum(numbers)


def refused(number: int) -> int:
    """Fails for 3, as damage does: every time."""
    if number == 3:
        raise ArchiveDamaged("3 is damaged", "3", 7)
    return number


def counted_refused(noted: str) -> None:
    """Notes each attempt, and fails."""
    with Path(noted).open("a") as f:
        f.write("x")
    raise ArchiveDamaged("it is damaged", noted)


def killed_once(noted: str) -> int:
    """Kills the process that it is in, the first time; returns how often it was begun."""
    with Path(noted).open("a") as f:
        f.write("x")
    if len(Path(noted).read_text()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(Path(noted).read_text())


def killed(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def encoded_at_the_second_try(job: SegmentJob) -> EncodedSegment:
    """Leaves half a file, and dies, if nobody has tried before."""
    folder = Path(job.folder)
    if len(list(folder.parent.iterdir())) == 1:
        (folder / "half.kvarc").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return segment_task(job)


def folder_of(job: SegmentJob) -> str:
    return job.folder


def waited(path: str) -> None:
    """Says that it began, and never ends by itself."""
    Path(path).touch()
    while True:
        signal.pause()


class Unsendable:
    def __reduce__(self) -> str:
        raise TypeError("not to be sent")


def unsendable(number: int) -> Unsendable:
    return Unsendable()
