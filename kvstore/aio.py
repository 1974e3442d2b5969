"""The store for asyncio: the same calls, to be awaited.

    import kvstore.aio

    async with kvstore.aio.open("data") as store:
        for popped in await store.pop("billing", "orders", limit=32, wait=60.0):
            await store.ack(popped.receipt)

The idea: a call may wait for a lock or the disk, so it runs in a thread. The threads are the
store's own, because the loop's threads are few and serve other work, like name look-ups, and
because closing has to wait for just these calls. A pop that waits has no thread: it stands among
the store's waiters like a thread would, but its wake-up sets a future. One timer for each group and
topic serves all pops that wait for the next lock there to run out.

Invariants: a pop that waits holds no thread; a cancelled pop leaves no waiter behind, and the
messages that it took meanwhile are given back at once, as if they had not been handed out; after
`close` every call raises `StoreClosed`, and every pop that waits does so at once.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from kvstore.api.namespace_view import Namespace as SyncNamespace
from kvstore.api.namespace_view import own_form, topics_in
from kvstore.api.store import Store as SyncStore
from kvstore.config import StoreConfig
from kvstore.consume.async_consumer import ConsumesAwaited
from kvstore.core.popping.receipts import Popped
from kvstore.errors import CallerError, StoreClosed, StoreError, shown
from kvstore.message import PutResult
from kvstore.meta.namespaces import speak_own_names, wrap
from kvstore.opening.recovery import Progress, RecoveryReport
from kvstore.pop.inflight.table import InflightTable
from kvstore.pop.pop import Poll
from kvstore.process.forking import refuse_in_child
from kvstore.read.sql import SqlFilter
from kvstore.timing.transaction import Transaction as SyncTransaction

THREADS: Final = 16
"""Calls that run at a time: more than processors, since puts that wait for the disk share a sync.
"""
_THREADS_MAX: Final = 1024
_TIMER_MAX: Final = 24 * 3600.0
"""Seconds of the longest timer."""

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Looked = tuple[list[Popped], Poll | None]


def _awaited(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[_Calls, P], Coroutine[Any, Any, R]]:
    """A call of the store, or of a namespace's view, that a thread makes and a task awaits."""
    name = method.__name__

    async def awaited(self: _Calls, /, *args: P.args, **more: P.kwargs) -> R:
        call: Callable[..., R] = getattr(self._sync, name)
        return await self._run(functools.partial(call, *args, **more))

    functools.update_wrapper(awaited, method)
    return awaited


class _Bell:
    """Wakes one coroutine, from any thread."""

    __slots__ = ("_future", "_loop", "_rung")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._rung = False

    def ring(self) -> None:
        """Ring from any thread."""
        with suppress(RuntimeError):  # the loop is gone, and its waiters with it
            self._loop.call_soon_threadsafe(self.ring_here)

    def ring_here(self) -> None:
        """Ring from the loop's thread."""
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Waits until it rings, or has rung since the last wait; False if the time passes first."""
        if not self._rung:
            self._future = self._loop.create_future()
            timer = self._loop.call_later(min(seconds, _TIMER_MAX), self._wake)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        rang, self._rung = self._rung, False
        return rang


class _Calls(ConsumesAwaited):
    """The calls that a store and a namespace's view share; `_sync` is the synchronous twin."""

    _sync: Any

    async def _run(self, work: Callable[[], R]) -> R:
        raise NotImplementedError

    def transaction(self, *, group: str) -> Transaction:
        """See `kvstore.Store.transaction`; for `async with`."""
        return Transaction(self._run, self._sync.transaction(group=group))

    put = _awaited(SyncStore.put)
    put_batch = _awaited(SyncStore.put_batch)
    put_columns = _awaited(SyncStore.put_columns)
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
    redrive = _awaited(SyncStore.redrive)
    group_stats = _awaited(SyncStore.group_stats)
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
    on_check = _awaited(SyncStore.on_check)
    prepare = _awaited(SyncStore.prepare)
    prepare_batch = _awaited(SyncStore.prepare_batch)
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


class Store(_Calls):
    """An open store, see `kvstore.Store`; made by `open`, for the loop it is opened in."""

    def __init__(self, store: SyncStore, threads: ThreadPoolExecutor) -> None:
        self._sync = self._store = store
        self._threads = threads
        self._closing: asyncio.Future[None] | None = None
        self._bells: set[_Bell] = set()
        self._alarms: dict[InflightTable, asyncio.TimerHandle] = {}
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
        invisible_for: float = 30.0,
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
        bell = _Bell()
        asked = (limit, max_bytes, invisible_for, queue, filter, attempt_id)
        begin = functools.partial(self._store._begin_pop, bell.ring, group, topic, wait, *asked)
        poll: Poll | None = None
        try:
            found, poll = await self._look(begin, keep=attempt_id is not None)
            while poll is not None and not found and poll.left() > 0:
                self._bells.add(bell)
                if poll.due_in:
                    self._set_alarms(poll)
                    # The alarm rings when a lock runs out: one alarm serves all waiting pops.
                    while (nap := poll.nap(until_due=False)) > 0 and not await bell.wait(nap):
                        poll.rested()
                again = functools.partial(_look_again, poll)
                found, _ = await self._look(again, keep=attempt_id is not None)
            return found
        finally:
            if poll is not None:
                self._bells.discard(bell)
                poll.end()
                for table in poll.tables:
                    if not table.waiters:
                        self._stop_alarm(table)

    async def _look(self, look: Callable[[], Looked], *, keep: bool) -> Looked:
        """Looks in a thread. If the pop is cancelled meanwhile, the messages that the look takes
        are given back.
        """
        future = self._submit(look)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # The callback runs at once if the look has ended, and not in a thread if it never
            # began.
            future.add_done_callback(functools.partial(self._abandon, keep))
            raise

    def _abandon(self, keep: bool, future: Future[Looked]) -> None:
        # An exception would end the thread, and the pool starts no other in its place. After one
        # the work is done again: a waiter that never left would take wake-ups from others.
        try:
            self._undo(keep, future)
        except BaseException:
            with suppress(BaseException):
                self._undo(keep, future)

    def _undo(self, keep: bool, future: Future[Looked]) -> None:
        """Undoes an abandoned look; the second time does nothing more."""
        if future.cancelled() or future.exception() is not None:
            return
        found, poll = future.result()
        if poll is not None:
            poll.end()
        if found and not keep:
            try:
                self._threads.submit(self._give_back, found)
            except RuntimeError:  # they end; this is one of them, or the last to be there
                self._give_back(found)

    def _give_back(self, found: list[Popped]) -> None:
        # A message that can't be given back comes back when its lock runs out.
        with suppress(StoreError):
            self._store.undo_pop([one.receipt for one in found])

    def _set_alarms(self, poll: Poll) -> None:
        """Sets the alarm for the first lock of each in-flight table to run out, as this poll found
        it. A pop that finds something wakes the next by leaving; one that doesn't sets the alarm
        anew.
        """
        loop = asyncio.get_running_loop()
        for table, due_in in poll.dues:
            when, alarm = loop.time() + due_in, self._alarms.get(table)
            if due_in <= _TIMER_MAX and (alarm is None or alarm.when() > when):
                self._stop_alarm(table)
                self._alarms[table] = loop.call_at(when, self._alarmed, table)

    def _alarmed(self, table: InflightTable) -> None:
        del self._alarms[table]
        self._store._engine.waiting.freed(table, 1)

    def _stop_alarm(self, table: InflightTable) -> None:
        alarm = self._alarms.pop(table, None)
        if alarm is not None:
            alarm.cancel()

    # --- calls that only a store has ---

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
    stats = _awaited(SyncStore.stats)
    segments = _awaited(SyncStore.segments)
    catalog = _awaited(SyncStore.catalog)
    verify = _awaited(SyncStore.verify)

    # --- the end ---

    async def close(self) -> None:
        """See `kvstore.Store.close`. Pops that wait raise `StoreClosed`; running calls are waited
        for. A second call waits for the first, and tries again if that one failed.
        """
        if self._closing is None or (self._closing.done() and self._closing.exception()):
            loop = asyncio.get_running_loop()
            # In a thread of the loop: the store's own threads are to end.
            self._closing = loop.run_in_executor(None, self._close)
            for bell in self._bells:
                bell.ring_here()
            for table in list(self._alarms):
                self._stop_alarm(table)
        # Closing goes on even if its caller is cancelled.
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        try:
            self._threads.shutdown()
        finally:
            self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _look_again(poll: Poll) -> Looked:
    return poll.look(), None


class Namespace(_Calls):
    """A namespace's calls, see `kvstore.Namespace`."""

    def __init__(self, store: Store, view: SyncNamespace) -> None:
        self.name = view.name
        self._store = store
        self._sync = view

    def __repr__(self) -> str:
        return f"<kvstore.aio.Namespace {self.name} of {self._store.path}>"

    async def _run(self, work: Callable[[], R]) -> R:
        return await self._store._run(work)

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._run(functools.partial(self._sync.__exit__, kind, value, trace))


class _Opening:
    """The result of `open`: to be awaited, or entered by `async with`."""

    def __init__(self, opens: Callable[[], SyncStore], threads: int) -> None:
        self._opens = opens
        self._threads = threads
        self._opened: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        return self._open().__await__()

    async def _open(self) -> Store:
        threads = ThreadPoolExecutor(self._threads, thread_name_prefix="kvmq-aio")
        future = threads.submit(self._opens)
        try:
            return Store(await asyncio.wrap_future(future), threads)
        except BaseException:
            # The caller was cancelled: the opened store is closed again.
            future.add_done_callback(_close_unseen)
            threads.shutdown(wait=False)
            raise

    async def __aenter__(self) -> Store:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._opened is not None, "it is left after it was entered"
        await self._opened.close()


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
) -> _Opening:
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
    return _Opening(opens, threads)
