"""The checkpoint page: up to which store times RocketMQ had its files on disk.

The idea: five numbers in a page of 4096 bytes. RocketMQ's recovery after a crash begins at the file
whose first message is older than the times in the page.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvstore.errors import FormatError
from kvstore.files import Files
from kvstore.rocketmq.file_layouts import CHECKPOINT, CHECKPOINT_MARGIN_MS


class CheckpointPage(msgspec.Struct, frozen=True, gc=False):
    """Times are store times in ms since the epoch, 0 if never; positions are bytes of the log."""

    log_time: int
    queue_time: int
    index_time: int
    master_flushed_position: int
    confirmed_position: int

    @property
    def safe_time(self) -> int:
        """The store time up to which messages are on disk, and dispatched (RocketMQ:
        getMinTimestamp).
        """
        return max(0, min(self.log_time, self.queue_time) - CHECKPOINT_MARGIN_MS)


def read_checkpoint(path: Path, files: Files) -> CheckpointPage | None:
    """The page; None if there is no such file. Raises FormatError if it is too short."""
    if files.size(path) is None:
        return None
    data = files.read(path, 0, CHECKPOINT.size)
    if len(data) < CHECKPOINT.size:
        raise FormatError(
            f"{path} has {len(data)} bytes, a checkpoint has at least {CHECKPOINT.size}"
        )
    return CheckpointPage(*CHECKPOINT.unpack(data))
