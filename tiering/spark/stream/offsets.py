"""Offsets: how far a stream has come, as Spark keeps it in a checkpoint.

The idea: an offset has the next offset of each queue, under its topic's name and id, in JSON that
people can read. That alone says which messages a batch has. Two numbers beside it spare looking
where nothing can be: see `Frontier`.

Invariants: a topic that was deleted and made again has another id, and begins anew; an offset of
another store, or of a later version, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from kvstore.errors import ConfigError, shown
from tiering.spark.splits import code_of, queue_of

VERSION: Final = 1
_EARLIEST, _LATEST = -2, -1


class Frontier(NamedTuple):
    """A state of a stream in numbers: the next offsets by the queue's code, a position below which
    the log has nothing more, and a number below which archives have nothing more.
    """

    ends: Mapping[int, int]
    position: int = 0
    archives: int = 0


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

    def frontier(self, of: list[str] | None) -> Frontier:
        """The state as it holds for the topics `of`: the two numbers say nothing of others."""
        if self.of != of:
            return Frontier(self.ends())
        return Frontier(self.ends(), self.position, self.archives)

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


Queue = Annotated[str, Meta(pattern=r"^[0-9]+\Z")]
Begin = Annotated[int, Meta(ge=_EARLIEST)]


def read_starting(text: str) -> dict[str, dict[str, int]]:
    """The option `starting_offsets` where it is a JSON: by topic and queue. Raises ConfigError."""
    try:
        found: dict[str, dict[str, int]] = msgspec.json.decode(
            text, type=dict[str, dict[Queue, Begin]]
        )
    except (msgspec.DecodeError, RecursionError) as e:
        raise ConfigError(
            f"option starting_offsets is {shown(text)}; it must be earliest, latest, or JSON like "
            '{"orders": {"0": 17, "1": -2, "2": -1}}: an offset, -2 for the earliest, -1 for the '
            "latest"
        ) from e
    return found


def wants_latest(asked: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a queue is to begin at the latest."""
    return any(_LATEST in queues.values() for queues in asked.values())


def starting(
    asked: Mapping[str, Mapping[str, int]], ids: Mapping[str, int], latest: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """The offsets that are asked for, by the queues' codes, but for those at the earliest. Raises
    ConfigError.
    """
    for name, queues in asked.items():
        if name not in ids:
            raise ConfigError(
                f"option starting_offsets names topic {shown(name)}, which is not there"
            )
        for queue, offset in queues.items():
            code = code_of(ids[name], int(queue))
            if offset != _EARLIEST:
                yield code, latest.get(code, 0) if offset == _LATEST else offset
