"""Pops of several topics at once: a list of names, patterns, or both.

The idea: a pop asks one topic after the other, until it has enough. It begins behind the topic that
gave the first messages last time, in the order of names, so a topic that has always enough waits
for its next turn behind all others that have any. Topics that a pattern names are looked up when a
pop begins, and again whenever a topic was made or deleted.

Invariants: a text with `*`, `?` or `[` is a pattern, since no name has these; none of them stands
for a `%`, so a pattern names topics of its own namespace alone, and no dead letters unless it says
so; no pattern names a topic in which messages wait.
"""

from __future__ import annotations

import fnmatch
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kvstore.core.names import SYSTEM_TOPICS
from kvstore.core.popping.receipts import Popped
from kvstore.errors import (
    ArchiveMissing,
    ArchiveUnavailable,
    CallerError,
    StoreError,
    TopicNotFound,
    shown,
)
from kvstore.meta.groups import GroupInfo
from kvstore.meta.namespaces import SEPARATOR
from kvstore.meta.topics import Topic, Topics
from kvstore.record.validate import listed

TOPICS_MAX: Final = 1024
"""Names and patterns of one pop, and topics that it asks."""
_WILD: Final = re.compile(r"[*?\[]")
_SETS_MAX: Final = 256
"""Sets of topics that are remembered, with their turns."""


def is_pattern(name: object) -> bool:
    """Whether a text names several topics."""
    return isinstance(name, str) and _WILD.search(name) is not None


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a pattern stands for a name."""
    parts = [re.compile(fnmatch.translate(part)) for part in pattern.split(SEPARATOR)]

    def matches(name: str) -> bool:
        found = name.split(SEPARATOR)
        return len(found) == len(parts) and all(map(re.Pattern.fullmatch, parts, found))

    return matches


class TopicSet:
    """The topics of pops that ask for the same names and patterns; threads share it. `last` is the
    topic that gave the first messages at the last pop.
    """

    def __init__(self, topics: Topics, wanted: Sequence[str]) -> None:
        self.last = ""
        self._topics = topics
        self._names = sorted({name for name in wanted if not is_pattern(name)})
        self._patterns = [(fixed_part(name), matcher(name)) for name in wanted if is_pattern(name)]
        self._version = -1
        self._found: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether topics may join it."""
        return bool(self._patterns)

    def names(self) -> list[str]:
        """The names of its topics, in the order of this turn."""
        version = self._topics.version
        if version != self._version:
            found = set(self._names)
            for fixed, matches in self._patterns:
                found.update(filter(matches, self._topics.names(fixed)))
            names = sorted(found - SYSTEM_TOPICS)
            if len(names) > TOPICS_MAX:
                raise CallerError(
                    f"the pop asks for {len(names)} topics, more than {TOPICS_MAX}; ask for fewer"
                )
            self._found, self._version = names, version
        names, last = self._found, self.last
        behind = next((n for n, name in enumerate(names) if name > last), 0)
        return names[behind:] + names[:behind]

    def topics(self) -> Iterator[Topic]:
        """Its topics, in the order of this turn; `TopicNotFound` for a name that no topic has."""
        for name in self.names():
            found = self._topics.find(name)
            if found is not None:
                yield found
            elif name in self._names:
                self._topics.get(name)


def fixed_part(pattern: str) -> str:
    """The part of a pattern with which all its names begin."""
    found = _WILD.search(pattern)
    return pattern if found is None else pattern[: found.start()]


class TopicSets:
    """The sets of topics that groups pop; see the module."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: OrderedDict[tuple[int, tuple[str, ...]], TopicSet] = OrderedDict()

    def get(self, group: GroupInfo, wanted: str | Sequence[str]) -> TopicSet:
        """The topics that a group asks for by a pattern or a list; `CallerError`."""
        names = [wanted] if isinstance(wanted, str) else listed("topic", wanted)
        if not 0 < len(names) <= TOPICS_MAX or not all(isinstance(name, str) for name in names):
            raise CallerError(
                f"topic is {shown(wanted)}; it must be a name, a pattern, or a list of 1 to "
                f"{TOPICS_MAX} of them"
            )
        key = group.id, tuple(names)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = TopicSet(self._topics, names)
            if len(self._known) > _SETS_MAX:
                self._known.popitem(last=False)
        return found


Claims = Callable[[Topic, tuple[Any, ...]], list[Popped] | None]
"""Claims messages of a topic, with the arguments of `Store.pop`."""


class Several:
    """A pop of several topics. `asked` are limit, max_bytes, invisible_for, queue, filter and
    attempt_id of `Store.pop`; `again` finds what an earlier pop with the attempt id has.
    """

    def __init__(
        self,
        group: GroupInfo,
        topics: TopicSet,
        asked: tuple[Any, ...],
        claims: Claims,
        again: Claims,
    ) -> None:
        self.group = group
        self.topics = topics
        self.limit, self._max_bytes, self._invisible_for, queue, *rest = asked
        self._filter, self._attempt_id = rest
        self.is_selective = self._filter is not None
        if queue is not None:
            raise CallerError(f"queue is {shown(queue)}; a pop of several topics is of all queues")
        self._claims = claims
        self._again = again

    def _asked(self, limit: int) -> tuple[Any, ...]:
        return (
            limit, self._max_bytes, self._invisible_for, None, self._filter, self._attempt_id,
        )  # fmt: skip

    def claim(self) -> list[Popped] | None:
        """Hands out the messages there are now; None if it found none, but there is more to look at
        than one call may.
        """
        # A name that no topic has is an error before anything is locked.
        topics = list(self.topics.topics())
        if self._attempt_id is not None:
            asked = self._asked(self.limit)
            held = [popped for topic in topics for popped in self._again(topic, asked) or ()]
            if held:
                return held
        out: list[Popped] = []
        is_done, unavailable = True, None
        for topic in topics:
            try:
                found = self._claim_of(topic, out)
            except (ArchiveMissing, ArchiveUnavailable) as e:
                unavailable = e
                continue
            is_done = is_done and found is not None
            if found and self._has_enough(topic, found, out):
                break
        if unavailable is not None and not out:
            raise unavailable
        return out if out or is_done else None

    def _claim_of(self, topic: Topic, out: list[Popped]) -> list[Popped] | None:
        """Claims messages of one topic, behind those of others."""
        try:
            return self._claims(topic, self._asked(self.limit - len(out)))
        except (ArchiveMissing, ArchiveUnavailable):
            raise
        except StoreError as e:
            # Messages of other topics are locked by now: the next pop meets the error.
            if out or (isinstance(e, TopicNotFound) and self.topics.is_open):
                return []
            raise

    def _has_enough(self, topic: Topic, found: list[Popped], out: list[Popped]) -> bool:
        """Adds messages of a topic; True if the pop takes no more."""
        if not out:
            self.topics.last = topic.name
        out += found
        # With a limit of bytes, one topic alone can say what fits.
        return len(out) >= self.limit or self._max_bytes is not None
