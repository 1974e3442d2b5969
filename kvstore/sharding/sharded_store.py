"""A store on several shards: the calls of a served store, over all of them.

The idea: the work is asyncio's (`shards`), in a loop that has a thread of its own; a call hands its
request to the loop, and waits. With `kvstore.aio` the loop is the caller's.

Invariants: when `close` has returned, the thread has ended, and every call raises `StoreClosed`; a
forked child connects anew at its first call, by a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from kvstore.client.loop_link import LoopBridge, made_in_loop
from kvstore.client.served_checker import RegisteredChecker
from kvstore.client.served_store import ServedStore
from kvstore.client.served_target import closed
from kvstore.client.socket_link import SocketLink
from kvstore.process.forking import keep_for_ever, refuse_in_child, release_in_child
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

    def __init__(self, loop: OwnLoop | CallersLoop) -> None:
        self.url = loop.shards.url
        self.names = [shard.name for shard in loop.shards.shards]
        self._in_loop = loop
        self._is_closed = False
        self._is_forked = False
        """Whether the loop is that of the process of which this one is a fork."""
        self._connecting = threading.Lock()
        if isinstance(loop, OwnLoop):
            release_in_child(self)
        else:
            refuse_in_child(self)

    @property
    def path(self) -> Path:
        """The place of the list of shards."""
        return Path(self._in_loop.shards.folder)

    def forked(self) -> None:
        """See `process.forking.Holder`."""
        self._is_forked = True
        keep_for_ever(self._in_loop)  # its loop would complain of tasks that never end
        self._connecting = threading.Lock()
        release_in_child(self)

    def _connected(self) -> OwnLoop | CallersLoop:
        """The loop with the connections; `StoreClosed`."""
        if self._is_closed:
            raise closed(self.url)
        if self._is_forked:
            with self._connecting:
                if self._is_forked and isinstance(self._in_loop, OwnLoop):
                    self._in_loop = self._in_loop.again()
                    self._is_forked = False
        return self._in_loop

    def shard(self, name: str) -> ServedStore:
        """One shard's own store; it ends with this one. `CallerError`.

        >>> store.shard("shard-0").verify().problems  # doctest: +SKIP
        []
        """
        found = self._connected()
        calls = found.shards.shard(name).calls
        link = cast(SocketLink, LoopBridge(calls.link, found.loop))
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
        found = self._connected()
        return made_in_loop(found.loop, found.shards.call(method, args, named), self.url)

    def close(self) -> None:
        """Ends the connections; calls that are under way raise `StoreClosed`. Closing twice does
        nothing.
        """
        if not self._is_closed:
            self._is_closed = True
            if not self._is_forked:
                self._in_loop.stop()

    def __repr__(self) -> str:
        return f"<kvstore.ShardedStore {self.url}>"


class CallersLoop(NamedTuple):
    """A loop that others run, with shards that are connected; for `kvstore.aio`."""

    shards: Shards
    loop: asyncio.AbstractEventLoop

    def stop(self) -> None:
        """The sessions are ended in the loop."""


class OwnLoop:
    """A loop in a thread, with shards that it connects; `ConnectionLost` if none can be reached."""

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

    def again(self) -> OwnLoop:
        """Another one, with connections of its own."""
        return OwnLoop(self._make)

    def stop(self) -> None:
        """Ends the sessions, and the thread."""
        if self._end is not None:
            with suppress(RuntimeError):  # it has ended
                self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
