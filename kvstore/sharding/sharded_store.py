"""A store on several shards: the calls of a served store, over all of them.

The idea: the work is asyncio's (`shards`), in a loop that has a thread of its own; a call hands its
request to the loop, and waits. With `kvstore.aio` the loop is the caller's.

Invariant: when `close` has returned, the thread has ended, and every call raises `StoreClosed`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from kvstore.client.loop_link import LoopBridge, made_in_loop
from kvstore.client.served_checker import RegisteredChecker
from kvstore.client.served_store import ServedStore
from kvstore.client.served_target import closed
from kvstore.client.socket_link import SocketLink
from kvstore.process.forking import refuse_in_child
from kvstore.sharding.shards import Shards
from kvstore.timing.checks import Ask


class ShardCheckers:
    """The checkers of a group at all shards; see `Store.on_check`."""

    def __init__(self, group: str, checkers: Sequence[RegisteredChecker]) -> None:
        self.group = group
        self._checkers = checkers

    @property
    def is_open(self) -> bool:
        """Whether any of them takes questions."""
        return any(checker.is_open for checker in self._checkers)

    def close(self) -> None:
        """Ends them."""
        for checker in self._checkers:
            checker.close()


class ShardedStore(ServedStore):
    """A store on several shards, see `kvstore.connect`. `names` are the shards', in their order."""

    def __init__(
        self, shards: Shards, loop: asyncio.AbstractEventLoop, ends: Callable[[], None]
    ) -> None:
        """`ends` stops the loop, if it is the store's own."""
        self.url = shards.url
        self.names = [shard.name for shard in shards.shards]
        self._shards = shards
        self._loop = loop
        self._ends = ends
        self._is_closed = False
        refuse_in_child(self)

    @property
    def path(self) -> Path:
        """The place of the list of shards."""
        return Path(self._shards.folder)

    def shard(self, name: str) -> ServedStore:
        """One shard's own store; it ends with this one. `CallerError`.

        >>> store.shard("shard-0").verify().problems  # doctest: +SKIP
        []
        """
        calls = self._shards.shard(name).calls
        link = cast(SocketLink, LoopBridge(calls.link, self._loop))
        store = ServedStore(link, calls.requests, calls.url)
        refuse_in_child(store)
        return store

    def on_check(self, group: str, checker: Ask) -> ShardCheckers:
        """See `kvstore.Store.on_check`; the function is called in this process."""
        found = list[RegisteredChecker]()
        try:
            for name in self.names:
                found.append(self.shard(name).on_check(group, checker))
        except BaseException:
            ShardCheckers(group, found).close()
            raise
        return ShardCheckers(group, found)

    def _call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if self._is_closed:
            raise closed(self.url)
        return made_in_loop(self._loop, self._shards.call(method, args, named), self.url)

    def close(self) -> None:
        """Ends the connections; calls that are under way raise `StoreClosed`. Closing twice does
        nothing.
        """
        if not self._is_closed:
            self._is_closed = True
            self._ends()

    def __repr__(self) -> str:
        return f"<kvstore.ShardedStore {self.url}>"


class _OwnLoop:
    """A loop in a thread, with shards that it connects."""

    def __init__(self, make: Callable[[], Shards]) -> None:
        self._make = make
        self._connected: Future[tuple[Shards, asyncio.AbstractEventLoop]] = Future()
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="kvmq-shards", daemon=True)
        self._thread.start()
        self.shards, self.loop = self._connected.result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as e:
            if self._connected.done():
                raise
            self._connected.set_exception(e)

    async def _serve(self) -> None:
        shards = self._make()
        await shards.connect()
        self._end = asyncio.Event()
        self._connected.set_result((shards, asyncio.get_running_loop()))
        await self._end.wait()
        await shards.close()

    def stop(self) -> None:
        """Ends the sessions, and the thread."""
        if self._end is not None:
            with suppress(RuntimeError):  # it has ended
                self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


def connect_shards(make: Callable[[], Shards]) -> ShardedStore:
    """Connects to shards, which are made in a loop; `ConnectionLost` if none can be reached."""
    own = _OwnLoop(make)
    return ShardedStore(own.shards, own.loop, own.stop)
