"""Renewals: the locks of push consumers, kept as long as their client lives.

The idea: a push consumer holds messages for as long as its program works on them, and says nothing
meanwhile. Its locks are short, so that the messages of a client that died come back soon, and the
server renews them: the messages of one answer share a lock row, and one call renews them all
(`Store.renew_batch`). Renewing leaves the receipts as they are, so the client's handles stay good,
whatever becomes of the server.

Invariants: a lock is renewed while its client's heartbeat comes, and at most `FOR` seconds from the
pop, whatever clients of other credentials do under the same id; messages that were acked, given
back or forwarded are renewed no more; a renewal that fails ends that delivery's renewals, for the
message is somebody else's by now.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from kvstore.clock import Clock, whole_ms
from kvstore.errors import StoreError
from kvstore.serve.grpc.clients import ClientKey
from kvstore.serve.grpc.held_file import HeldLocks

LOCK: Final = 60.0
"""Seconds of a push consumer's lock."""
AHEAD: Final = 20.0
"""Seconds before its end at which a lock is renewed: two heartbeats."""
FOR: Final = 3 * 3600.0
"""Seconds from the pop for which a lock is renewed."""
_TURN: Final = 1.0
_log = logging.getLogger("kvmq")

Renew = Callable[[Sequence[str], float], Awaitable[Sequence[Any]]]
"""`Store.renew_batch`, awaited."""


class HeldAnswer:
    """The messages of one answer that its client has still to end, by their receipts."""

    __slots__ = ("client", "receipts", "since", "until")

    def __init__(
        self, client: ClientKey, receipts: Iterable[str], since: float, until: float
    ) -> None:
        self.client = client
        self.receipts = set(receipts)
        self.since = since
        self.until = until


class Renewals:
    """The locks that are renewed; see the module. Used in the loop's thread."""

    def __init__(self, renew: Renew, is_alive: Callable[[ClientKey], bool], clock: Clock) -> None:
        self._renew = renew
        self._is_alive = is_alive
        self._clock = clock
        self._by_receipt: dict[str, HeldAnswer] = {}
        self._by_client: dict[ClientKey, set[HeldAnswer]] = {}
        self._due: list[tuple[float, int, HeldAnswer]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._by_receipt)

    def hold(self, client: ClientKey, receipts: Sequence[str]) -> None:
        """Renews the locks of these receipts from now on."""
        now = self._clock.monotonic()
        self._add(HeldAnswer(client, receipts, now, now + FOR), now)

    def _add(self, held: HeldAnswer, now: float) -> None:
        # A repeated receive is answered with the same messages.
        self.end(held.receipts)
        for receipt in held.receipts:
            self._by_receipt[receipt] = held
        self._by_client.setdefault(held.client, set()).add(held)
        self._plan(held, now)

    def end(self, receipts: Iterable[str]) -> None:
        """Renews the locks of these receipts no more."""
        for receipt in list(receipts):
            held = self._by_receipt.pop(receipt, None)
            if held is not None:
                held.receipts.discard(receipt)
                if not held.receipts:
                    self._drop(held)

    def end_client(self, client: ClientKey) -> list[str]:
        """Renews the locks of a client no more; returns its receipts."""
        found = [r for held in self._by_client.get(client, ()) for r in held.receipts]
        self.end(found)
        return found

    def written(self, held_for: float = 0.0) -> list[HeldLocks]:
        """The locks, for the held file; only of messages that are held for so many seconds."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        return [
            HeldLocks(held.client, sorted(held.receipts), now_ms + whole_ms(held.until - now))
            for of_client in self._by_client.values()
            for held in of_client
            if now - held.since >= held_for
        ]

    def go_on(self, written: Iterable[HeldLocks]) -> None:
        """Goes on with the locks of a held file. They are renewed at the next turn."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for one in written:
            until = now + min(FOR, (one.until_ms - now_ms) / 1000)
            self._add(HeldAnswer(one.client, one.receipts, now, until), now - LOCK)

    async def run(self) -> None:
        """Renews locks until it is cancelled."""
        while True:
            await asyncio.sleep(_TURN)
            await self.turn()

    async def turn(self) -> None:
        """Renews the locks that end soon."""
        now = self._clock.monotonic()
        due: list[HeldAnswer] = []
        while self._due and self._due[0][0] <= now:
            held = heapq.heappop(self._due)[2]
            if not held.receipts:
                continue
            if now >= held.until or not self._is_alive(held.client):
                self.end(list(held.receipts))
            else:
                due.append(held)
        if not due:
            return
        # All receipts: some of an answer's messages may be in rows of their own.
        receipts = [receipt for held in due for receipt in held.receipts]
        try:
            results = await self._renew(receipts, LOCK)
            self.end(r for r, result in zip(receipts, results, strict=True) if result is not True)
        except StoreError as e:
            _log.error("kvmq could not renew %d locks of push consumers: %s", len(receipts), str(e))
        finally:
            for held in due:
                if held.receipts:
                    self._plan(held, now)

    def _plan(self, held: HeldAnswer, now: float) -> None:
        heapq.heappush(self._due, (now + LOCK - AHEAD, next(self._order), held))

    def _drop(self, held: HeldAnswer) -> None:
        of_client = self._by_client.get(held.client)
        if of_client is not None:
            of_client.discard(held)
            if not of_client:
                del self._by_client[held.client]
