"""One shard: its link, and its answers with the numbers of the whole.

Invariants: an answer of a shard is numbered as the whole is, and so is an error; receipts have the
shard's name in front; a call that does not wait for a shard that is down ends within the seconds
that it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from kvstore.client.loop_link import LoopCalls
from kvstore.client.served_calls import result_of_call
from kvstore.errors import (
    ConnectionLost,
    GroupNotFound,
    MessageNotFound,
    NamespaceNotFound,
    ScheduleNotFound,
    StoreError,
    TopicNotFound,
)
from kvstore.sharding.shard_plan import ShardedCall, as_whole

LACKING: Final = (
    MessageNotFound, TopicNotFound, GroupNotFound, ScheduleNotFound, NamespaceNotFound,
)  # fmt: skip
"""Errors that say that a shard has nothing of a name or an id, which another may have."""
_LOOK: Final = 0.25
"""Seconds between two looks whether a shard is down."""


class Shard:
    """See the module. `count` is how many shards there are."""

    def __init__(self, number: int, name: str, count: int, calls: LoopCalls) -> None:
        self.number = number
        self.name = name
        self.calls = calls
        self.link = calls.link
        self._count = count

    async def ask(self, asked: ShardedCall) -> Any:
        """The answer, however long the shard is down; `ConnectionLost` after `reconnect_for`."""
        with self._numbered():
            return self.whole(await self.calls.call(asked.method, asked.args, asked.named))

    async def ask_while_up(self, asked: ShardedCall, patience: float) -> Any:
        """The answer; `ConnectionLost` when the shard is down for so many seconds."""
        sent, down = self.calls.requests.make(asked.method, asked.args, asked.named), 0.0
        # It has no task of its own: what came when the caller is cancelled would be lost with that.
        try:
            while not sent.is_done:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        if not sent.number:
                            await self.link.begin(sent)
                        await self.link.wait(sent)
                down = 0.0 if self.link.is_up else down + _LOOK
                if down >= patience and not sent.is_done:
                    raise ConnectionLost(f"the shard {self.name} at {self.calls.url} is down")
        except BaseException:
            self.link.give_up(sent)
            raise
        with self._numbered():
            return self.whole(result_of_call(sent))

    @contextmanager
    def _numbered(self) -> Iterator[None]:
        try:
            yield
        except StoreError as e:
            self.whole(e)
            raise

    def whole(self, found: Any) -> Any:
        """The shard's answer with the numbers of the whole."""
        return as_whole(found, self.number, self.name, self._count)


def worst(errors: list[StoreError]) -> StoreError:
    """Of errors of several shards the one that says most."""
    return min(errors, key=lambda e: (isinstance(e, LACKING), isinstance(e, ConnectionLost)))
