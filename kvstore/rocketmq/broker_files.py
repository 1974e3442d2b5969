"""Broker files: the files that a broker needs beside log and configuration to go on with a store.

The idea: `config/timercheck` says where in the timer's queue a broker goes on; messages before that
place are not delivered again. `broker.conf` names the folders and the size of a segment, without
which a broker does not read the log. (RocketMQ: TimerCheckpoint, MessageStoreConfig.)

Invariants: values to bytes; nothing here reads or writes a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvstore.rocketmq.file_layouts import (
    COMMITLOG,
    TIMER_CHECKPOINT,
    TIMER_CHECKPOINT_SIZE,
)

BROKER_CONF: Final = "broker.conf"
HALF_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offset says up to where RocketMQ has asked about prepared messages."""
_WHOLE_SECONDS: Final = 1000


def timer_checkpoint(next_offset: int, now_ms: int) -> bytes:
    """A timer's checkpoint: it goes on at an offset of its queue, and at a time."""
    time = now_ms // _WHOLE_SECONDS * _WHOLE_SECONDS
    head = TIMER_CHECKPOINT.pack(time, 0, next_offset, next_offset, 0, time, 0)
    return head.ljust(TIMER_CHECKPOINT_SIZE, b"\0")


def broker_conf(folder: Path, segment_size: int) -> bytes:
    """The settings with which a broker starts on a folder."""
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "storePathRootDir": folder,
        "storePathCommitLog": folder / COMMITLOG,
        "mappedFileSizeCommitLog": segment_size,
        "timerWheelEnable": "true",
        # RocketMQ's own default is 72 hours. Its files must not go because they were moved here.
        "fileReservedTime": 24 * 365 * 10,
        "diskMaxUsedSpaceRatio": 95,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
