"""The check of a batch for several shards, before any of them is asked.

The idea: a store refuses a batch as a whole, because it encodes all messages before it puts one. So
the client encodes a batch for several shards as well, by what it knows: the rules of all messages,
and the topics as the shards have them. A store's own limits it does not know, nor whether a store
makes topics by itself: a message of an unknown topic passes here.

Invariant: no batch is refused here that the shards would take. A topic that refuses a message is
asked for again first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from kvstore.clock import Clock
from kvstore.config import QUEUES_MAX, Retention
from kvstore.core.encoding import Encoder, PutRoute
from kvstore.core.names import RESERVED, TRANSIENT_PREFIX
from kvstore.core.unique_ids import UniqueIds
from kvstore.errors import StoreError, TopicNotFound
from kvstore.message import Message
from kvstore.meta.topic import Topic
from kvstore.meta.topics import TopicInfo
from kvstore.record.put.explain import Limits, explain

_HOST: Final = bytes(8)
KNOWN_MAX: Final = 1 << 16
_LIMITS: Final = Limits(
    max_body=(1 << 31) - 1,
    max_record=(1 << 31) - 1,
    max_properties=(1 << 15) - 1,
    compress_above=None,
    compression="zlib",
    property_crc=False,
    any_time=True,
    cut_ms=0,
)
"""No store has higher ones."""
_FREE: Final = Topic(
    TopicInfo(
        name="t",
        id=0,
        read_queues=QUEUES_MAX,
        write_queues=1 << 31,
        kind="normal",
        key_index="off",
        retention=Retention(),
        since=0,
        attributes={},
        dedup_window=1.0,
    ),
    len(_HOST),
)
"""Takes any message: it stands for a topic of which nothing is known."""


class _KnownRoutes(dict[str, PutRoute]):
    """As `record.put.put_routes`; no topic is made here."""

    def find(self, name: str) -> PutRoute:
        return _FREE.route

    make_pending = find

    def make_missing(self, names: Sequence[str], *_: object) -> list[PutRoute]:
        return [_FREE.route for _ in names]


class BatchCheck:
    """See the module. `ask` gives a topic of the whole, or raises `StoreError`."""

    def __init__(self, ask: Callable[[str], Awaitable[TopicInfo]], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._topics: dict[str, Topic] = {}
        self._routes = _KnownRoutes()
        self._encoder = Encoder(
            self._routes,
            UniqueIds(_HOST[:4], 0, 0),
            lambda body, codec: (body, 0),
            _HOST,
            reserved=RESERVED,
            transient=TRANSIENT_PREFIX.encode(),
            **_LIMITS._asdict(),
        )

    async def check(self, messages: Sequence[Message], *, is_prepared: bool) -> set[str]:
        """Raises the error of the first message at fault; returns the topics that no shard has."""
        names = {str(getattr(message, "topic", "")) for message in messages}
        missing = await self._learn(names - self._topics.keys())
        if self._error(messages, is_prepared=is_prepared) is not None:
            missing = await self._learn(names)
            error = self._error(messages, is_prepared=is_prepared)
            if error is not None:
                raise error
        return missing

    async def _learn(self, names: Iterable[str]) -> set[str]:
        """Asks for topics; returns those that are not there."""
        missing = set[str]()
        for name in names:
            topic = _FREE
            try:
                topic = Topic(await self._ask(name), len(_HOST))
            except TopicNotFound:
                missing.add(name)
            except StoreError:
                pass  # the client may not see it, or no shard can be reached
            if len(self._topics) >= KNOWN_MAX:
                self._topics.clear()
                self._routes.clear()
            if name in missing:
                self._topics.pop(name, None)
                self._routes.pop(name, None)
            else:
                self._topics[name], self._routes[name] = topic, topic.route
        return missing

    def _error(self, messages: Sequence[Message], *, is_prepared: bool) -> StoreError | None:
        now = self._clock.now_ms()
        held = [(b"", now)] * len(messages) if is_prepared else None
        try:
            self._encoder.prepare(messages, now, held)
        except (AttributeError, LookupError, TypeError, ValueError) as e:
            facts = self._topics.get
            return explain(
                messages, e, _LIMITS, lambda name: facts(name, _FREE), now, is_prepared=is_prepared
            )[0]
        return None
