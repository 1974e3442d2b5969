"""Offsets: how far a stream has come, as Spark keeps it in a checkpoint.

The idea: an offset has the next offset of each queue, under its topic's name and id. That alone
says which messages a batch has. Two numbers beside it spare looking where nothing can be: below
`position` the log has nothing more to give, and neither have archives of numbers below `archives`.
It is JSON that people can read.

Invariants: a topic that was deleted and made again has another id, and begins anew; an offset of
another store, or of a later version, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from kvstore.errors import ConfigError, shown

VERSION: Final = 1
_BITS: Final = 32
_QUEUE: Final = (1 << _BITS) - 1
_EARLIEST, _LATEST = -2, -1


def code_of(topic: int, queue: int) -> int:
    """A queue as one number: by the topic's id, then its own."""
    return topic << _BITS | queue


def queue_of(code: int) -> tuple[int, int]:
    """The inverse: topic id and queue."""
    return code >> _BITS, code & _QUEUE


class TopicOffset(msgspec.Struct, frozen=True):
    """The next offset of each queue of a topic; JSON names the queue by a text."""

    id: int
    queues: dict[str, int]


class StreamOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's offset. `store` is the store's id in hex; None: there was nothing yet. `of` are
    the topics that were asked for, which the two numbers hold for; None: all.
    """

    version: int = VERSION
    store: str | None = None
    of: list[str] | None = None
    position: int = 0
    archives: int = 0
    topics: dict[str, TopicOffset] = {}

    def ends(self) -> dict[int, int]:
        """The next offsets, by the code of the queue."""
        return {
            code_of(topic.id, int(queue)): offset
            for topic in self.topics.values()
            for queue, offset in topic.queues.items()
        }

    def as_json(self) -> dict[str, Any]:
        """As Spark is given it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def read_offset(given: Mapping[str, Any]) -> StreamOffset:
    """The inverse of `as_json`. Raises ConfigError."""
    version = given.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(
            f"the checkpoint has offsets of version {version}, this kvmq reads up to {VERSION}; "
            "use a newer kvmq"
        )
    try:
        found = msgspec.convert(given, StreamOffset)
        found.ends()
    except (msgspec.ValidationError, ValueError) as e:
        raise ConfigError(
            f"the checkpoint's offset {shown(given)} is none of a kvmq stream ({e}); use the "
            "checkpoint that this stream wrote, or begin anew with another"
        ) from e
    return found


def topics_of(ends: Mapping[int, int], names: Mapping[int, str]) -> dict[str, TopicOffset]:
    """Next offsets by code, under the topics' names; queues without a name are left out."""
    found: dict[str, TopicOffset] = {}
    for code in sorted(ends):
        topic, queue = queue_of(code)
        name = names.get(topic)
        if name is not None:
            if name not in found:
                found[name] = TopicOffset(topic, {})
            found[name].queues[str(queue)] = ends[code]
    return dict(sorted(found.items()))


def starting(
    text: str, ids: Mapping[str, int], latest: Mapping[int, int] | None
) -> Iterator[tuple[int, int]]:
    """The offsets that `starting_offsets` gives for queues, by code, where it is a JSON; -2 is the
    earliest, -1 the latest. Raises ConfigError.
    """
    for name, queues in _parsed(text).items():
        if name not in ids:
            raise ConfigError(
                f"option starting_offsets names topic {shown(name)}, which is not there"
            )
        for queue, offset in queues.items():
            code = code_of(ids[name], int(queue))
            if offset == _LATEST:
                yield code, (latest or {}).get(code, 0)
            elif offset != _EARLIEST:
                yield code, offset


def wants_latest(text: str) -> bool:
    """Whether the JSON has a queue that begins at the latest."""
    return any(_LATEST in queues.values() for queues in _parsed(text).values())


def _parsed(text: str) -> dict[str, dict[str, int]]:
    try:
        found = msgspec.convert(json.loads(text), dict[str, dict[str, int]])
        if all(
            queue.isascii() and queue.isdigit() and offset >= _EARLIEST
            for queues in found.values()
            for queue, offset in queues.items()
        ):
            return found
    except (ValueError, RecursionError):
        pass
    raise ConfigError(
        f"option starting_offsets is {shown(text)}; it must be earliest, latest, or JSON like "
        '{"orders": {"0": 17, "1": -2, "2": -1}}: an offset, -2 for the earliest, -1 for the latest'
    )
