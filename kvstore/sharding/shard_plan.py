"""The plan of a call over several shards: its arguments for each, and one answer of theirs.

The idea: of N shards, queue q is on shard q % N, and is there queue q // N. A call's arguments are
bound to the names of the store's signature, so that a shard's own take their places; the answer is
numbered as the whole is. A receipt has the name of its shard in front. No sockets here.

Invariants: pure functions, but that messages and errors which came are numbered in place; the shard
of a message follows from its queue, its group or its dedup id, and from nothing else.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final
from zlib import crc32

import msgspec

from kvstore.api.store import Store
from kvstore.config import QUEUES_DEFAULT
from kvstore.core.popping.receipts import Popped
from kvstore.engine.stats import StoreStats
from kvstore.errors import (
    CallerError,
    FilterIllegal,
    MessageIllegal,
    QueueNotEmpty,
    StoreError,
    TopicNotFound,
)
from kvstore.message import Message, PullResult, PutResult, StoredMessage
from kvstore.meta.groups import GroupInfo
from kvstore.meta.offsets import Lag
from kvstore.meta.topics import TopicConfig, TopicInfo
from kvstore.pop.inflight.listing import InFlightMessage, InFlightPage
from kvstore.pop.progress import GroupStats
from kvstore.process.durations import DurationStats
from kvstore.record.validate import listed
from kvstore.timing.delayed_message import DelayedPage
from kvstore.timing.prepared_message import PreparedPage, due_of
from kvstore.timing.schedule_rows import ScheduleInfo

_NAMED: Final = "~"
"""Between a shard's name and its receipt."""
_QUEUES: Final = ("queues", "write_queues", "read_queues")
_NUMBERED: Final = re.compile(r"(?<!group )\bqueue (\d+)")
"""A queue in the text of an error."""
_LAST: Final = re.compile(r"(has no queue .*; it has 0 to )(\d+)$")
_COUNTED: Final = re.compile(r"(queues (?:is )?|\bto have |topic has 1 to )(\d+)\b")
"""The number of a topic's queues in the text of an error."""
_WHERE: Final = re.compile(r"message (\d+) of \d+: ")


@cache
def _signature(method: str) -> inspect.Signature:
    return inspect.signature(getattr(Store, method))


class ShardedCall:
    """A call with its arguments by their names."""

    __slots__ = ("_bound", "method")

    def __init__(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Raises TypeError for arguments that the call does not have."""
        self.method = method
        self._bound = _signature(method).bind(None, *args, **named)

    def get(self, name: str, otherwise: Any = None) -> Any:
        """An argument."""
        return self._bound.arguments.get(name, otherwise)

    def has(self, name: str) -> bool:
        """Whether an argument was given."""
        return name in self._bound.arguments

    def but(self, **changes: Any) -> ShardedCall:
        """The call with other values of some arguments."""
        found: ShardedCall = object.__new__(ShardedCall)
        found.method = self.method
        arguments = OrderedDict({**self._bound.arguments, **changes})
        found._bound = inspect.BoundArguments(_signature(self.method), arguments)
        return found

    @property
    def args(self) -> Sequence[Any]:
        """The arguments without names."""
        return self._bound.args[1:]

    @property
    def named(self) -> Mapping[str, Any]:
        """The others."""
        return self._bound.kwargs


# --- which shard ---


def is_queue(queue: object) -> bool:
    """Whether a value numbers a queue."""
    return type(queue) is int and queue >= 0


def shard_of_text(text: str, count: int) -> int:
    """The number of the shard to which a name belongs."""
    return crc32(text.encode("utf-8", "surrogatepass")) % count


def shard_of(message: object, count: int) -> int | None:
    """The number of a message's shard; None if any will do. A schedule's fields are as good."""
    queue = getattr(message, "queue", None)
    if type(queue) is int and queue >= 0:
        return queue % count
    for name in ("message_group", "dedup_id"):
        text = getattr(message, name, None)
        if type(text) is str:
            return shard_of_text(text, count)
    return None


def for_shard(value: Any, count: int) -> Any:
    """A message, the result of its put, or a topic's settings, as its shard is given it."""
    if isinstance(value, Message) and type(value.queue) is int and value.queue >= 0:
        return value.__replace__(queue=value.queue // count)
    if isinstance(value, PutResult):
        own = copy.copy(value)
        own.queue //= count
        return own
    if isinstance(value, TopicConfig):
        shares = {n: _share(getattr(value, n), count) for n in ("queues", "read_queues")}
        return msgspec.structs.replace(value, **shares)
    return value


def _share(queues: Any, count: int) -> Any:
    """The queues of a topic that each shard has."""
    return -(-queues // count) if type(queues) is int else queues


def shares(asked: ShardedCall, count: int) -> ShardedCall:
    """A change of topics, as each shard is asked for it."""
    if asked.method in ("create_topics", "create_namespace"):
        name = "configs" if asked.method == "create_topics" else "topics"
        configs = listed(name, asked.get(name, ()))
        return asked.but(**{name: [for_shard(one, count) for one in configs]})
    changed = {n: _share(asked.get(n), count) for n in _QUEUES if asked.has(n)}
    if asked.method == "create_topic":
        changed.setdefault("queues", _share(QUEUES_DEFAULT, count))
    return asked.but(**changed) if changed else asked


def named_receipt(name: str, receipt: str) -> str:
    """A receipt as a caller has it."""
    return f"{name}{_NAMED}{receipt}"


def split_receipt(receipt: object) -> tuple[str, Any]:
    """The name of the shard, and the receipt that it gave."""
    if not isinstance(receipt, str):
        return "", receipt
    name, found, own = receipt.partition(_NAMED)
    return (name, own) if found else ("", receipt)


# --- one shard's answer ---


def as_whole(value: Any, number: int, name: str, count: int) -> Any:
    """The answer of a shard with the numbers of the whole."""
    if type(value) is list:
        return [as_whole(one, number, name, count) for one in value]
    if isinstance(value, StoreError):
        return error_of_whole(value, number, count)
    if isinstance(value, StoredMessage | PutResult):
        value.queue = value.queue * count + number
    elif isinstance(value, Popped):
        as_whole(value.message, number, name, count)
        return value.__replace__(receipt=named_receipt(name, value.receipt))
    elif isinstance(value, InFlightMessage):
        own = None if value.message is None else as_whole(value.message, number, name, count)
        whole = value.queue * count + number
        return msgspec.structs.replace(value, queue=whole, message=own)
    elif isinstance(value, PullResult | DelayedPage | PreparedPage | InFlightPage):
        found = [as_whole(one, number, name, count) for one in value.messages]
        return msgspec.structs.replace(value, messages=found)
    elif isinstance(value, dict):
        return {queue * count + number: offset for queue, offset in value.items()}
    elif isinstance(value, msgspec.Struct) and is_queue(getattr(value, "queue", None)):
        # Of lag, of messages that wait, and of schedules.
        return msgspec.structs.replace(value, queue=value.queue * count + number)  # type: ignore[attr-defined]  # it was asked for
    return value


def error_of_whole(error: StoreError, number: int, count: int) -> StoreError:
    """An error of a shard, which from now on names the queues of the whole."""

    # A filter's error quotes the filter.
    if not isinstance(error, FilterIllegal) and error.args and isinstance(error.args[0], str):
        text = _NUMBERED.sub(lambda m: f"queue {int(m[1]) * count + number}", error.args[0])
        text = _LAST.sub(lambda m: f"{m[1]}{(int(m[2]) + 1) * count - 1}", text)
        text = _COUNTED.sub(lambda m: f"{m[1]}{int(m[2]) * count}", text)
        error.args = (text, *error.args[1:])
    if isinstance(error, QueueNotEmpty):
        error.queue = error.queue * count + number
    return error


def error_of_part(error: StoreError, places: Sequence[int], count: int) -> StoreError:
    """An error about a message of a shard's part, which from now on says the message's place in
    the batch of so many. `places` are those of the part's messages.
    """
    text = str(error)
    found = _WHERE.match(text)
    if found is not None and int(found[1]) < len(places):
        text = text[found.end() :]
        error.args = (f"message {places[int(found[1])]} of {count}: {text}", *error.args[1:])
    elif len(places) == 1 < count and isinstance(error, MessageIllegal | TopicNotFound):
        error.args = (f"message {places[0]} of {count}: {text}", *error.args[1:])
    return error


# --- one answer of many ---


def combined(asked: ShardedCall, found: Sequence[Any], count: int) -> Any:
    """The answer of the whole, of those of shards in the order of their numbers."""
    first = found[0]
    if isinstance(first, DelayedPage | PreparedPage):
        return _page(found, asked.get("limit", 64))
    if isinstance(first, StoreStats):
        return _summed_stats(found)
    if isinstance(first, TopicInfo | GroupInfo):
        return _one_info(found, count)
    if isinstance(first, dict):
        return dict(sorted(pair for one in found for pair in one.items()))
    if type(first) is int:
        return sum(found)
    if type(first) is not list:
        return first
    together = [one for several in found for one in several]
    if asked.method == "query":
        together.sort(key=lambda message: -message.stored_at)
        limit = asked.get("limit", 64)
        return together[:limit] if type(limit) is int else together
    if asked.method in ("create_topics", "create_groups"):
        return [_one_info(several, count) for several in zip(*found, strict=True)]
    return _listed(together, count)


def _listed(together: list[Any], count: int) -> list[Any]:
    if not together:
        return together
    kind = type(together[0])
    if kind is Lag:
        return sorted(together, key=lambda lag: (lag.topic, lag.queue))
    if kind is str:
        return sorted(set(together))
    if kind is ScheduleInfo:
        return sorted(together, key=lambda schedule: schedule.name)
    by_name = dict[str, list[Any]]()
    for one in together:
        by_name.setdefault(one.topic if kind is GroupStats else one.name, []).append(one)
    unite = _summed_figures if kind is GroupStats else _one_info
    return [unite(by_name[name], count) for name in sorted(by_name)]


def _one_info(found: Sequence[Any], count: int) -> Any:
    if not isinstance(found[0], TopicInfo):
        return found[0]
    queues = {
        name: max(getattr(info, name) for info in found) * count
        for name in ("read_queues", "write_queues", "queues_ever")
    }
    return msgspec.structs.replace(found[0], **queues)


def _page(pages: Sequence[Any], limit: Any) -> Any:
    """The next messages of all pages; those of one place are in one page."""

    def place(one: Any) -> tuple[int, int]:
        due = one.deliver_at if isinstance(pages[0], DelayedPage) else due_of(one)
        return due, one.message.position

    messages = sorted((one for page in pages for one in page.messages), key=place)
    # Behind that a shard may have messages that its page lacks.
    reached = min((tuple(page.next) for page in pages if page.next), default=None)
    known = [one for one in messages if reached is None or place(one) <= reached]
    kept = known[:limit]
    kept += [one for one in known[limit:] if place(one) == place(kept[-1])]
    summed = ("count", "damaged") if isinstance(pages[0], DelayedPage) else ("count",)
    sums = {name: sum(getattr(page, name) for page in pages) for name in summed}
    following = reached if len(kept) == len(known) else place(kept[-1])
    return msgspec.structs.replace(pages[0], messages=kept, next=following, **sums)


def _summed(values: Sequence[Any]) -> Any:
    """Figures together: numbers and tables are summed, lists joined; of anything else the first."""
    first = values[0]
    if type(first) is bool:
        return all(values)
    if type(first) in (int, float):
        return sum(values)
    if isinstance(first, list):
        return [one for several in values for one in several]
    if isinstance(first, dict):
        names = dict.fromkeys(name for one in values for name in one)
        return {name: sum(one.get(name, 0) for one in values) for name in names}
    if isinstance(first, DurationStats):
        counts = tuple(map(sum, zip(*(one.counts for one in values), strict=True)))
        return DurationStats(first.limits, counts, sum(one.seconds for one in values))
    if isinstance(first, msgspec.Struct):
        return _summed_struct(values)
    return next((one for one in values if one is not None), None)


def _summed_struct(values: Sequence[Any]) -> Any:
    sums = {
        name: _summed([getattr(v, name) for v in values]) for name in values[0].__struct_fields__
    }
    for name in _EARLIEST & sums.keys():
        sums[name] = min(_given(getattr(v, name) for v in values), default=None)
    for name in _LARGEST & sums.keys():
        sums[name] = max(getattr(v, name) for v in values)
    return type(values[0])(**sums)


_EARLIEST: Final = frozenset({"next_due", "oldest_due", "oldest_at"})
_LARGEST: Final = frozenset({"topics", "segment_size", "disk_used", "late_ms"})


def _given(values: Iterable[Any]) -> Iterable[Any]:
    return (value for value in values if value is not None)


def _summed_stats(found: Sequence[StoreStats]) -> StoreStats:
    summed: StoreStats = _summed_struct(found)
    return summed


def _summed_figures(found: Sequence[GroupStats], count: int) -> GroupStats:
    del count
    summed: GroupStats = _summed_struct(found)
    return summed


def check_reset(asked: ShardedCall) -> None:
    """`CallerError` for an offset that is to be that of several queues."""
    if asked.get("offset") is not None:
        raise CallerError("an offset is of one queue; name the queue as well")
