"""The store for asyncio: the same calls, to be awaited.

    import kvstore.aio

    async with kvstore.aio.open("data") as store:
        for popped in await store.pop("billing", "orders", limit=32, wait=60.0):
            await store.ack(popped.receipt)

The idea: a call may wait for a lock or the disk, so it runs in a thread. The threads are the
store's own, because the loop's threads are few and serve other work, like name look-ups, and
because closing has to wait for just these calls. A pop that waits has no thread (`api.loop_pops`).

Invariants: a pop that waits holds no thread; a cancelled pop leaves no waiter behind, and the
messages that it took meanwhile are given back at once, as if they had not been handed out (any
other call that is cancelled may be made or not); after `close` every call raises `StoreClosed`, and
every pop that waits does so at once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from kvstore.api.loop_checks import AsyncAsk, ask_in
from kvstore.api.loop_pops import Look, Looked, LoopPops
from kvstore.api.namespace_view import Namespace as SyncNamespace
from kvstore.api.namespace_view import own_form, topics_in
from kvstore.api.store import Store as SyncStore
from kvstore.client.loop_link import LoopBridge, LoopCalls, LoopLink
from kvstore.client.served_calls import message_of, signed_as
from kvstore.client.served_store import ServedStore as SyncServedStore
from kvstore.client.served_target import Credentials, Tls, read_target
from kvstore.config import StoreConfig
from kvstore.consume.async_consumer import ConsumesAwaited
from kvstore.core.popping.receipts import Popped
from kvstore.errors import CallerError, StoreClosed, StoreError, shown
from kvstore.message import PutResult
from kvstore.meta.namespaces import speak_own_names, wrap
from kvstore.opening.recovery import Progress, RecoveryReport
from kvstore.pop.nack import Nack
from kvstore.pop.popped import INVISIBLE_DEFAULT
from kvstore.process.forking import refuse_in_child
from kvstore.read.sql import SqlFilter
from kvstore.sharding.connecting import RECONNECT_FOR, check_reconnect
from kvstore.sharding.sharded_store import CallersLoop, ShardedStore
from kvstore.sharding.shards import Shards
from kvstore.timing.checks import Ask, Checker
from kvstore.timing.transaction import Transaction as SyncTransaction
from kvstore.wire.call_table import REPEATS
from kvstore.wire.cluster_file import cluster_of

THREADS: Final = 16
"""Calls that run at a time: more than processors, since puts that wait for the disk share a sync.
"""
_THREADS_MAX: Final = 1024
_PUT: Final = "with a dedup id the repeat returns the first result"
_PREPARE: Final = "`transactions` lists it if so"

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
H = TypeVar("H", bound="Store | ServedStore")


def _awaited(
    method: Callable[Concatenate[S, P], R], cancelled: str = ""
) -> Callable[Concatenate[_Calls, P], Coroutine[Any, Any, R]]:
    """A call of the store, or of a namespace's view, that a thread makes and a task awaits."""
    name = method.__name__

    async def awaited(self: _Calls, /, *args: P.args, **more: P.kwargs) -> R:
        result: R = await self._make(name, args, more)
        return result

    functools.update_wrapper(awaited, method)
    if cancelled:
        awaited.__doc__ = f"{method.__doc__}\nCancelled, it may have been made or not: {cancelled}."
    return awaited


class _Calls(ConsumesAwaited):
    """The calls that a store and a namespace's view share; `_sync` is the synchronous twin."""

    _sync: Any

    async def _run(self, work: Callable[[], R]) -> R:
        raise NotImplementedError

    async def _make(self, name: str, args: Sequence[Any], more: Mapping[str, Any]) -> Any:
        """Makes a call by its name."""
        return await self._run(functools.partial(getattr(self._sync, name), *args, **more))

    def transaction(self, *, group: str) -> Transaction:
        """See `kvstore.Store.transaction`; for `async with`."""
        return Transaction(self._run, self._sync.transaction(group=group))

    async def on_check(self, group: str, checker: Ask | AsyncAsk) -> Checker:
        """See `kvstore.Store.on_check`. A coroutine function is called in this loop, while its
        question's thread waits; any other is called in that thread.
        """
        ask: Any = checker
        if inspect.iscoroutinefunction(checker):
            ask = functools.partial(ask_in, asyncio.get_running_loop(), checker)
        found: Checker = await self._run(lambda: self._sync.on_check(group, ask))
        return found

    put = _awaited(SyncStore.put, _PUT)
    put_batch = _awaited(SyncStore.put_batch, _PUT)
    put_columns = _awaited(SyncStore.put_columns, _PUT)
    get = _awaited(SyncStore.get)
    pull = _awaited(SyncStore.pull)
    pull_columns = _awaited(SyncStore.pull_columns)
    query = _awaited(SyncStore.query)
    read_at = _awaited(SyncStore.read_at)
    find = _awaited(SyncStore.find)
    offset_at = _awaited(SyncStore.offset_at)
    bounds = _awaited(SyncStore.bounds)
    ack = _awaited(SyncStore.ack)
    ack_batch = _awaited(SyncStore.ack_batch)
    change_invisible = _awaited(SyncStore.change_invisible)
    change_invisible_batch = _awaited(SyncStore.change_invisible_batch)
    nack = _awaited(SyncStore.nack)
    nack_batch = _awaited(SyncStore.nack_batch)
    undo_pop = _awaited(SyncStore.undo_pop)
    renew_batch = _awaited(SyncStore.renew_batch)
    give_up = _awaited(SyncStore.give_up)
    redrive = _awaited(SyncStore.redrive)
    group_stats = _awaited(SyncStore.group_stats)
    in_flight = _awaited(SyncStore.in_flight)
    create_topic = _awaited(SyncStore.create_topic)
    create_topics = _awaited(SyncStore.create_topics)
    topics = _awaited(SyncStore.topics)
    topic = _awaited(SyncStore.topic)
    alter_topic = _awaited(SyncStore.alter_topic)
    delete_topic = _awaited(SyncStore.delete_topic)
    delete_topics = _awaited(SyncStore.delete_topics)
    create_group = _awaited(SyncStore.create_group)
    create_groups = _awaited(SyncStore.create_groups)
    groups = _awaited(SyncStore.groups)
    group = _awaited(SyncStore.group)
    alter_group = _awaited(SyncStore.alter_group)
    delete_group = _awaited(SyncStore.delete_group)
    delete_groups = _awaited(SyncStore.delete_groups)
    commit_offset = _awaited(SyncStore.commit_offset)
    commit_offsets = _awaited(SyncStore.commit_offsets)
    committed_offset = _awaited(SyncStore.committed_offset)
    offset_history = _awaited(SyncStore.offset_history)
    reset_offset = _awaited(SyncStore.reset_offset)
    lag = _awaited(SyncStore.lag)
    prepare = _awaited(SyncStore.prepare, _PREPARE)
    prepare_batch = _awaited(SyncStore.prepare_batch, _PREPARE)
    commit = _awaited(SyncStore.commit)
    commit_batch = _awaited(SyncStore.commit_batch)
    rollback = _awaited(SyncStore.rollback)
    rollback_batch = _awaited(SyncStore.rollback_batch)
    transactions = _awaited(SyncStore.transactions)
    prepared = _awaited(SyncStore.prepared)
    cancel = _awaited(SyncStore.cancel)
    change_delay = _awaited(SyncStore.change_delay)
    timer = _awaited(SyncStore.timer)
    timers = _awaited(SyncStore.timers)
    schedule = _awaited(SyncStore.schedule)
    schedules = _awaited(SyncStore.schedules)
    schedule_info = _awaited(SyncStore.schedule_info)
    next_firings = _awaited(SyncStore.next_firings)
    pause_schedule = _awaited(SyncStore.pause_schedule)
    resume_schedule = _awaited(SyncStore.resume_schedule)
    delete_schedule = _awaited(SyncStore.delete_schedule)


class _WholeStore(_Calls):
    """The calls that only a whole store has."""

    find_in = _awaited(SyncStore.find_in)
    commit_in = _awaited(SyncStore.commit_in)
    rollback_in = _awaited(SyncStore.rollback_in)
    transactions_in = _awaited(SyncStore.transactions_in)
    prepared_in = _awaited(SyncStore.prepared_in)
    cancel_in = _awaited(SyncStore.cancel_in)
    change_delay_in = _awaited(SyncStore.change_delay_in)
    timer_in = _awaited(SyncStore.timer_in)
    timers_in = _awaited(SyncStore.timers_in)
    schedules_in = _awaited(SyncStore.schedules_in)
    topics_of = _awaited(SyncStore.topics_of)
    groups_of = _awaited(SyncStore.groups_of)
    create_namespace = _awaited(SyncStore.create_namespace)
    namespaces = _awaited(SyncStore.namespaces)
    delete_namespace = _awaited(SyncStore.delete_namespace)
    export_rocketmq = _awaited(SyncStore.export_rocketmq)
    export_rocketmq_store = _awaited(SyncStore.export_rocketmq_store)
    import_rocketmq_config = _awaited(SyncStore.import_rocketmq_config)
    flush = _awaited(SyncStore.flush)
    checkpoint = _awaited(SyncStore.checkpoint)
    seal = _awaited(SyncStore.seal)
    apply_retention = _awaited(SyncStore.apply_retention)
    group_topics = _awaited(SyncStore.group_topics)
    stats = _awaited(SyncStore.stats)
    segments = _awaited(SyncStore.segments)
    catalog = _awaited(SyncStore.catalog)
    verify = _awaited(SyncStore.verify)

    async def close(self) -> None:
        """See `kvstore.Store.close`."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Store(_WholeStore):
    """An open store, see `kvstore.Store`; made by `open`, for the loop it is opened in."""

    def __init__(self, store: SyncStore, threads: ThreadPoolExecutor) -> None:
        self._sync = self._store = store
        self._threads = threads
        self._closing: asyncio.Future[None] | None = None
        self._pops = LoopPops(store, asyncio.get_running_loop())
        refuse_in_child(self)

    def __repr__(self) -> str:
        return f"<kvstore.aio.Store of {self._store!r}>"

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self._store.path

    @property
    def config(self) -> StoreConfig:
        """The settings it was opened with."""
        return self._store.config

    @property
    def recovery(self) -> RecoveryReport:
        """The report of the opening."""
        return self._store.recovery

    def namespace(self, name: str) -> Namespace:
        """See `kvstore.Store.namespace`."""
        return Namespace(self, self._store.namespace(name))

    async def _run(self, work: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Callable[[], R]) -> Future[R]:
        self._check_open()
        return self._threads.submit(work)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed(f"{self.path} was closed; open it again")

    # --- popping ---

    async def pop(
        self,
        group: str,
        topic: str | Sequence[str],
        limit: int = 1,
        invisible_for: float = INVISIBLE_DEFAULT,
        wait: float = 0.0,
        filter: str | SqlFilter | None = None,
        queue: int | None = None,
        *,
        max_bytes: int | None = None,
        attempt_id: str | None = None,
    ) -> list[Popped]:
        """See `kvstore.Store.pop`. Waiting costs no thread.

        If it is cancelled, what it took is given back at once and the attempt does not count;
        unless it has an `attempt_id`, by which it can be had again. `StoreClosed` if the store is
        closed meanwhile.
        """
        return await self._pops.pop(
            self._look,
            group,
            topic,
            wait,
            limit,
            max_bytes,
            invisible_for,
            queue,
            filter,
            attempt_id,
            keep=attempt_id is not None,
        )

    async def _look(self, look: Look, abandon: Callable[[Looked], None]) -> Looked:
        """Looks in a thread. If the pop is cancelled meanwhile, the look is abandoned: what it
        takes is given back.
        """
        future = self._submit(look)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # The callback runs at once if the look has ended, and not in a thread if it never
            # began.
            future.add_done_callback(functools.partial(self._abandoned, abandon))
            raise

    def _abandoned(self, abandon: Callable[[Looked], None], future: Future[Looked]) -> None:
        # An exception would end the thread, and the pool starts no other in its place. After one
        # the work is done again: a waiter that never left would take wake-ups from others.
        try:
            self._undo(abandon, future)
        except BaseException:
            with suppress(BaseException):
                self._undo(abandon, future)

    def _undo(self, abandon: Callable[[Looked], None], future: Future[Looked]) -> None:
        """Undoes an abandoned look; the second time does nothing more."""
        if future.cancelled() or future.exception() is not None:
            return
        looked = future.result()
        try:
            self._threads.submit(abandon, looked)
        except RuntimeError:  # they end; this is one of them, or the last to be there
            abandon(looked)

    # --- the end ---

    async def close(self) -> None:
        """See `kvstore.Store.close`. Pops that wait raise `StoreClosed`; running calls are waited
        for. A second call waits for the first, and tries again if that one failed.
        """
        if self._closing is None or (self._closing.done() and self._closing.exception()):
            loop = asyncio.get_running_loop()
            # In a thread of the loop: the store's own threads are to end.
            self._closing = loop.run_in_executor(None, self._close)
            self._pops.ring()
        # Closing goes on even if its caller is cancelled.
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        try:
            self._threads.shutdown()
        finally:
            self._store.close()


class Namespace(_Calls):
    """A namespace's calls, see `kvstore.Namespace`."""

    def __init__(self, store: Store | ServedStore, view: SyncNamespace) -> None:
        self.name = view.name
        self._store = store
        self._sync = view

    def __repr__(self) -> str:
        return f"<kvstore.aio.Namespace {self.name} of {self._store.path}>"

    async def _run(self, work: Callable[[], R]) -> R:
        return await self._store._run(work)

    @signed_as(SyncStore.pop)
    async def pop(
        self, group: str, topic: str | Sequence[str], *args: Any, **more: Any
    ) -> list[Popped]:
        """See `Store.pop`."""
        try:
            own = wrap(self.name, group), topics_in(self.name, topic)
            found = await self._store.pop(*own, *args, **more)
        except StoreError as e:
            speak_own_names(self.name, e)
            raise
        own_form(self.name, found)
        return found


class Transaction:
    """A transaction, see `kvstore.Transaction`: `put` and `put_batch` collect messages at once, the
    other calls are awaited.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        transaction: SyncTransaction,
    ) -> None:
        self._run = run
        self._sync = transaction
        self.put = transaction.put
        self.put_batch = transaction.put_batch

    @property
    def results(self) -> list[PutResult]:
        """Where the messages went, once the transaction is committed."""
        return self._sync.results

    async def prepare(self) -> list[PutResult]:
        """See `kvstore.Transaction.prepare`."""
        found: list[PutResult] = await self._run(self._sync.prepare)
        return found

    async def commit(self) -> list[PutResult]:
        """See `kvstore.Transaction.commit`."""
        found: list[PutResult] = await self._run(self._sync.commit)
        return found

    async def rollback(self) -> None:
        """See `kvstore.Transaction.rollback`."""
        await self._run(self._sync.rollback)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *how: Any) -> None:
        await self._run(functools.partial(self._sync.__exit__, *how))


class ServedStore(_WholeStore):
    """A store that another process serves, see `kvstore.ServedStore`; made by `connect`, for the
    loop it is connected in.
    """

    def __init__(self, calls: LoopCalls | Shards, sync: SyncServedStore) -> None:
        self._calls = calls
        self._sync = sync
        """The calls that are made of several others use it in a thread."""
        self.url = calls.url
        refuse_in_child(self)

    def __repr__(self) -> str:
        return f"<kvstore.aio.ServedStore {self.url}>"

    @property
    def path(self) -> Path:
        """The store's folder, as the server names it."""
        return Path(self._calls.folder)

    def namespace(self, name: str) -> Namespace:
        """See `kvstore.Store.namespace`."""
        return Namespace(self, self._sync.namespace(name))

    @signed_as(SyncStore.put)
    async def put(self, topic: str, body: Any, **fields: Any) -> PutResult:
        """See `kvstore.aio.Store.put`. Puts of one turn of the loop go out together."""
        message = message_of(topic, body, fields)
        size = len(body) if isinstance(body, bytes | bytearray | memoryview) else 0
        result: PutResult = await self._calls.single("put_batch", message, size)
        return result

    async def ack(self, receipt: str) -> None:
        """See `kvstore.Store.ack`. Acks of one turn of the loop go out together."""
        result = await self._calls.single("ack_batch", receipt)
        if result is not True:
            raise result

    async def nack(self, receipt: str, delay: float | None = None, reason: str = "") -> None:
        """See `kvstore.Store.nack`."""
        (result,) = await self.nack_batch([Nack(receipt, delay, reason)])
        if result is not True:
            raise result

    @signed_as(SyncStore.pop)
    async def pop(
        self, group: str, topic: str | Sequence[str], *args: Any, **more: Any
    ) -> list[Popped]:
        """See `kvstore.Store.pop`. Waiting costs no thread, here and in the server. If it is
        cancelled, what it took is given back, as `kvstore.aio.Store.pop` says.
        """
        found: list[Popped] = await self._make("pop", (group, topic, *args), more)
        return found

    async def _make(self, name: str, args: Sequence[Any], more: Mapping[str, Any]) -> Any:
        if name not in REPEATS or name == "on_check" or more.get("progress"):
            return await super()._make(name, args, more)
        return await self._calls.call(name, args, more)

    async def _run(self, work: Callable[[], R]) -> R:
        return await asyncio.to_thread(work)

    async def close(self) -> None:
        """Ends the connection; calls that are under way raise `StoreClosed`."""
        await self._calls.close()


class _Opening(Generic[H]):
    """The result of `open` and `connect`: to be awaited, or entered by `async with`."""

    def __init__(self, opens: Callable[[], Coroutine[Any, Any, H]]) -> None:
        self._opens = opens
        self._opened: H | None = None

    def __await__(self) -> Generator[Any, None, H]:
        return self._opens().__await__()

    async def __aenter__(self) -> H:
        self._opened = await self._opens()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        assert self._opened is not None, "it is left after it was entered"
        await self._opened.close()


async def _open_store(opens: Callable[[], SyncStore], threads: int) -> Store:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="kvmq-aio")
    future = pool.submit(opens)
    try:
        return Store(await asyncio.wrap_future(future), pool)
    except BaseException:
        # The caller was cancelled: the opened store is closed again.
        future.add_done_callback(_close_unseen)
        pool.shutdown(wait=False)
        raise


def _close_unseen(future: Future[SyncStore]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()


def open(
    path: str | Path,
    config: StoreConfig | None = None,
    *,
    read_only: bool = False,
    progress: Progress | None = None,
    threads: int = THREADS,
) -> _Opening[Store]:
    """Opens a store, see `kvstore.open`: `async with kvstore.aio.open(...) as store`, or
    `store = await kvstore.aio.open(...)`. `progress` is called by a thread. Up to `threads` calls
    run at a time, the others stand in line; a pop that waits doesn't count.

    >>> async def first(path: str) -> bytes:
    ...     async with kvstore.aio.open(path) as store:
    ...         return (await store.get("orders", queue=0, offset=0)).body
    """
    if type(threads) is not int or not 1 <= threads <= _THREADS_MAX:
        raise CallerError(f"threads is {shown(threads)}; it must be 1 to {_THREADS_MAX}")
    opens = functools.partial(SyncStore, path, config, read_only=read_only, progress=progress)
    return _Opening(functools.partial(_open_store, opens, threads))


def connect(
    url: str | Path | Sequence[str | Path],
    *,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
    reconnect_for: float = RECONNECT_FOR,
) -> _Opening[ServedStore]:
    """Connects to a served store, see `kvstore.connect`: `async with kvstore.aio.connect(...)`, or
    `store = await kvstore.aio.connect(...)`. Also to shards, as one store.

    >>> async def first(url: str) -> bytes:
    ...     async with kvstore.aio.connect(url) as store:
    ...         return (await store.get("orders", queue=0, offset=0)).body
    """
    seconds, found = check_reconnect(reconnect_for), cluster_of(url)
    target = None if found else read_target(url, credentials, tls)  # type: ignore[arg-type]  # no list

    async def connected() -> ServedStore:
        loop = asyncio.get_running_loop()
        if target is None:
            assert found is not None, "it is one or the other"
            shards = Shards(*found, seconds, credentials, tls)
            await shards.connect()
            return ServedStore(shards, ShardedStore(CallersLoop(shards, loop)))
        link = LoopLink(target, seconds)
        await link.connect()
        calls = LoopCalls(link)
        bridge: Any = LoopBridge(link, loop)
        return ServedStore(calls, SyncServedStore(bridge, calls.requests, calls.url))

    return _Opening(connected)
