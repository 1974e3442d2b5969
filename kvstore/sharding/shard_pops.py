"""Pops over several shards: what there is from each in turn, or the first that comes to any.

The idea: a pop looks at one shard after the other, from another one on each time. If none has a
message it waits at all of them, and when one answers, the other pops are taken back.

Invariants:

- A pop takes no more than its limit: messages that came beyond it go back as if nobody had them.
- A pop whose caller has gone leaves nothing locked, unless it can be had again by its `attempt_id`.
- A shard that is down, or lacks the group or the topic, is passed over, unless all are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from kvstore.client.served_calls import result_of_call
from kvstore.core.popping.receipts import Popped
from kvstore.errors import ConnectionLost, StoreError
from kvstore.pop.popped import check_wait
from kvstore.sharding.shard import LACKING, Shard, worst
from kvstore.sharding.shard_plan import ShardedCall, shard_of_text

_ROUND: Final = 5.0
"""Seconds after which a pop that waits looks at the shards that it passed over."""
_CANCELLED: Final = 1.0
"""Seconds after which a pop without an answer is taken back once more."""
Undo = Callable[[ShardedCall], Coroutine[Any, Any, Any]]


class ShardPops:
    """See the module. `up` lists the shards that can be reached, `undo` makes an `undo_pop`; a
    shard that is down is waited for for `patience` seconds.
    """

    def __init__(
        self, count: int, up: Callable[[], list[Shard]], undo: Undo, patience: float
    ) -> None:
        self._count = count
        self._up = up
        self._undo = undo
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._giving_back: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends the work that nobody waits for; what is to go back has a moment for that."""
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=_CANCELLED)
        for task in list(self._giving_back):
            task.cancel()

    async def pop(self, asked: ShardedCall) -> list[Popped]:
        """Takes messages from all shards, in turn."""
        until = self._loop.time() + check_wait(asked.get("wait", 0.0))
        while True:
            found, shards = await self._look(asked)
            left = until - self._loop.time()
            if found or left <= 0:
                return found
            seconds = left if len(shards) == self._count else min(left, _ROUND)
            found = await self._wait(asked.but(wait=seconds), shards)
            if found:
                return found

    def _turn(self, asked: ShardedCall) -> list[Shard]:
        """The shards that a pop takes from, in their order: of a repeat the same one."""
        attempt = asked.get("attempt_id")
        if not isinstance(attempt, str):
            return self._up()
        first = shard_of_text(attempt, self._count)
        return sorted(self._up(), key=lambda shard: (shard.number - first) % self._count)

    async def _look(self, asked: ShardedCall) -> tuple[list[Popped], list[Shard]]:
        """Takes messages from one shard after the other, up to the limit; with the shards that have
        group and topic, as far as it came.
        """
        limit, most = asked.get("limit", 1), asked.get("max_bytes")
        found, good, errors = list[Popped](), list[Shard](), list[StoreError]()
        taken = 0  # bytes
        for shard in self._turn(asked):
            own = asked.but(wait=0.0)
            if found and type(limit) is int:
                own = own.but(limit=limit - len(found))
            if found and type(most) is int:
                own = own.but(max_bytes=most - taken)
            try:
                found += await shard.ask_while_up(own, self._patience)
                good.append(shard)
            except (*LACKING, ConnectionLost) as e:
                errors.append(e)
            except BaseException:
                self._give_back(found, asked)
                raise
            taken = sum(popped.message.size for popped in found)
            is_full = type(limit) is int and len(found) >= limit
            if is_full or (type(most) is int and taken >= most):
                break
        if not good:
            raise worst(errors)
        return found, good

    async def _wait(self, asked: ShardedCall, shards: Sequence[Shard]) -> list[Popped]:
        """Waits at several shards until one has messages, or an error. The others' pops are taken
        back; messages that they brought all the same count up to the limit.
        """
        changed = asyncio.Event()
        pops = [_WaitingPop(shard, asked, changed.set) for shard in shards]
        try:
            for pop in pops:
                await pop.begin()
            while not any(pop.is_done and (pop.sent.error or pop.found()) for pop in pops):
                if all(pop.is_done for pop in pops):
                    break
                changed.clear()
                await changed.wait()
            await _end(pops, changed)
        except BaseException:
            self._begin(self._take_back(pops, changed, asked))
            raise
        found = self._brought(pops)
        limit = asked.get("limit", 1)
        self._give_back(found[limit:], asked)
        return found[:limit]

    def _brought(self, pops: Sequence[_WaitingPop]) -> list[Popped]:
        return [popped for pop in pops for popped in pop.shard.whole(pop.found())]

    async def _take_back(
        self, pops: Sequence[_WaitingPop], changed: asyncio.Event, asked: ShardedCall
    ) -> None:
        """Takes back pops whose caller has gone."""
        begun = [pop for pop in pops if pop.sent.number]
        await _end(begun, changed)
        self._give_back(self._brought(begun), asked)

    def _give_back(self, found: Sequence[Popped], asked: ShardedCall) -> None:
        """Gives messages back that nobody has seen, unless they can be had again by an id."""
        if found and asked.get("attempt_id") is None:
            receipts = [popped.receipt for popped in found]
            self._begin(self._undo(ShardedCall("undo_pop", (receipts,), {})))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        async def done() -> None:
            with suppress(StoreError):
                await work  # else the messages come back when their locks run out

        task = self._loop.create_task(done())
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)


class _WaitingPop:
    """A pop that waits at one shard."""

    __slots__ = ("_found", "sent", "shard")

    def __init__(self, shard: Shard, asked: ShardedCall, changed: Callable[[], None]) -> None:
        self.shard = shard
        self.sent = shard.calls.requests.make(asked.method, asked.args, asked.named)
        self.sent.changed = changed
        self._found: list[Popped] | None = None

    @property
    def is_done(self) -> bool:
        """Whether its answer came."""
        return self.sent.is_done

    async def begin(self) -> None:
        """Sends it."""
        await self.shard.calls.link.begin(self.sent)

    def cancel(self) -> None:
        """Takes it back, if it is not done."""
        self.shard.calls.link.cancel(self.sent)

    def found(self) -> list[Popped]:
        """The messages that came."""
        if self._found is None:
            self._found = [] if self.sent.error is not None else result_of_call(self.sent)
        return self._found


async def _end(pops: Sequence[_WaitingPop], changed: asyncio.Event) -> None:
    """Takes pops back, and waits for their answers."""
    while not all(pop.is_done for pop in pops):
        for pop in pops:
            pop.cancel()  # again, if the connection broke meanwhile
        changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCELLED):
                while not all(pop.is_done for pop in pops):
                    await changed.wait()
                    changed.clear()
