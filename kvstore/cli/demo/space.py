"""What the loaded messages take on disk, beside what RocketMQ's queue files would take."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvstore.cli.demo.load import Loaded
from kvstore.cli.sizes import index_sizes, rocketmq_queue_files


class Space(msgspec.Struct):
    """Bytes of a loaded store, closed and without a manual compaction."""

    messages: int
    keys: int
    queues: int
    bodies: int
    log: int
    queue_index: int
    key_index: int
    index_folder: int
    rocketmq_queue_files: int
    rocketmq_address_space: int


class TierSpace(msgspec.Struct):
    """Bytes of a store whose cold half is in archives: of the log, and of the archives; and what
    the messages in these took in the log.
    """

    hot: int
    warm: int
    warm_messages: int
    warm_records: int


def measure_space(folder: Path, loaded: Loaded) -> Space:
    """Measure a store that is closed."""
    sizes = index_sizes(folder)
    disk, address_space = rocketmq_queue_files(loaded.queues.values())
    return Space(
        messages=loaded.messages,
        keys=loaded.keys,
        queues=len(loaded.queues),
        bodies=loaded.body_bytes,
        log=loaded.log_bytes,
        queue_index=sizes.of("runs", "places"),
        key_index=sizes.of("message_keys"),
        index_folder=sizes.folder,
        rocketmq_queue_files=disk,
        rocketmq_address_space=address_space,
    )


def space_rows(space: Space) -> list[tuple[str, str, str, str]]:
    """What, bytes per message, total, remark."""
    messages = max(space.messages, 1)
    key_bytes = space.key_index / max(space.keys, 1)

    def row(name: str, size: int, remark: str) -> tuple[str, str, str, str]:
        return name, f"{size / messages:,.1f}", f"{size / 1e6:,.1f} MB", remark

    queues = f"{space.queues:,} queues"
    space_remark = (
        f"the same {queues}; and {space.rocketmq_address_space / 1e9:,.1f} GB of address space"
    )
    return [
        row("bodies", space.bodies, "what was put"),
        row("commit log", space.log, "whole records: body, topic, key, tag, properties, unique id"),
        row("queue index", space.queue_index, f"runs + places, {queues}"),
        row("key index", space.key_index, f"{space.keys:,} keys, {key_bytes:.1f} B a key"),
        row("RocketMQ's queue files", space.rocketmq_queue_files, space_remark),
    ]


def tier_rows(tiers: TierSpace) -> list[tuple[str, str, str, str]]:
    """As `space_rows`, for the tiers."""
    messages = max(tiers.warm_messages, 1)
    share = tiers.warm / max(tiers.warm_records, 1)
    was = f"{tiers.warm_records / 1e6:,.1f} MB, indexes included"
    return [
        ("hot: segments", "", f"{tiers.hot / 1e6:,.1f} MB", "the log, without the cold half"),
        (
            "warm: archives",
            f"{tiers.warm / messages:,.1f}",
            f"{tiers.warm / 1e6:,.1f} MB",
            f"the cold half: {tiers.warm_messages:,} messages, {share:.0%} of {was}",
        ),
    ]
