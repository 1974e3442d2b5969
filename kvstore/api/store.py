"""The store: the calls that only a whole store has, from opening to closing.

The idea: `kvstore.open` makes a `Store`, and the store makes an engine, which wires the parts. The
calls on messages, topics, groups and offsets are in `Calls`, from which a namespace's view takes
its own. `open_tiers` is the one place where a store meets `tiering`: a store is given that function
when it opens, and calls it when it first needs an archive. So a store without archives never
imports `tiering`, and no module of either package keeps a reference to the other.

Invariants: after `close` every call but `close` raises `StoreClosed`, and in a forked child
`StoreForked`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from kvstore.api.calls import Calls
from kvstore.api.namespace_view import Namespace
from kvstore.config import StoreConfig
from kvstore.core.popping.receipts import Popped
from kvstore.engine import config_exchange, group_offsets, topic_changes
from kvstore.engine.broker_folder import BrokerExport, export_broker_folder
from kvstore.engine.config_exchange import ConfigImport
from kvstore.engine.engine import Engine, ReadingEngine
from kvstore.engine.stats import SegmentStats, StoreStats, collect, segment_stats
from kvstore.engine.verification.verify import VerifyReport, verify
from kvstore.errors import ConfigError, shown
from kvstore.files import local_path
from kvstore.index.archived import Archived, Catalog, OpenArchives
from kvstore.index.keys import ARCHIVES, META, STORE_ID
from kvstore.message import Message, PutResult
from kvstore.meta.groups import GroupConfig
from kvstore.meta.topics import TopicConfig
from kvstore.opening.adopting import Adoption
from kvstore.opening.recovery import Progress
from kvstore.pop.ack import AckResult
from kvstore.pop.pop import Poll
from kvstore.pop.popped import check_wait
from kvstore.process.durations import DurationStats
from kvstore.process.forking import refuse_in_child
from kvstore.rocketmq.export import ExportReport


def open_tiers(path: Path, rows: Iterable[tuple[bytes, bytes]], config: StoreConfig) -> Archived:
    """Opens archives through `tiering`."""
    from tiering.catalog.tiers import Tiers  # noqa: PLC0415  # see the module

    return Tiers(
        path,
        rows,
        files=config.files,
        clock=config.clock,
        check_crc=config.check_crc,
        access=config.archives,
    )


class Store(Calls):
    """An open store; see `kvstore.open`. Every call may be made from several threads."""

    def __init__(
        self,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        read_only: bool = False,
        progress: Progress | None = None,
        adopt: Adoption | None = None,
        open_archives: OpenArchives = open_tiers,
    ) -> None:
        # Absolute: the process may change its folder while the store is open.
        self.path = local_path(path).absolute()
        given = config if config is not None else StoreConfig()
        if not isinstance(given, StoreConfig):
            raise ConfigError(f"config is {shown(given)}; it must be a StoreConfig, or None")
        given.archives.check_there(given.files)
        if not read_only:
            given.check_puts_are_readable()
        refuse_in_child(self)
        engine = (ReadingEngine if read_only else Engine)(
            self.path,
            given,
            read_only=read_only,
            progress=progress,
            adopt=adopt,
            open_archives=open_archives,
        )
        super().__init__(engine)
        self.config = engine.config
        self.recovery = engine.recovery
        self.threads = engine.threads
        """Threads that work for this store by themselves: its own, and a tiering worker's."""
        if engine.log.writable:
            self.handover = engine.handover
            """The calls of a tiering worker."""

    # --- namespaces ---

    def namespace(self, name: str) -> Namespace:
        """A namespace's calls: the same as the store's, on its own topics and groups alone.

        >>> store.namespace("tenant-a").put("orders", b"...").topic  # doctest: +SKIP
        'orders'
        """
        return Namespace(self, name)

    def namespaces(self) -> list[str]:
        """The names of all namespaces, including those that occur only in names of topics and
        groups (as in a store that RocketMQ wrote).
        """
        self._check_open()
        return self._engine.namespaces.all()

    def create_namespace(
        self,
        name: str,
        topics: Iterable[TopicConfig] = (),
        groups: Iterable[GroupConfig] = (),
        *,
        exist_ok: bool = False,
    ) -> None:
        """Makes a namespace with topics and groups, all or nothing, in one batch. Their names are
        given as they are called in it. `NamespaceExists`; `store.namespace(name)` is the way in.
        With `exist_ok` all that is there stays as it is, and what is not is made.

        >>> orders = TopicConfig(name="orders")
        >>> store.create_namespace("tenant-a", topics=[orders])  # doctest: +SKIP
        """
        self._engine.log.check_writable()
        topic_changes.create_namespace(self._engine, name, topics, groups, exist_ok=exist_ok)

    def delete_namespace(self, name: str) -> int:
        """Deletes a namespace with all its topics and groups, in one batch; returns how many
        delayed and prepared messages went with them. `NamespaceNotFound`.
        """
        self._engine.log.check_writable()
        return topic_changes.delete_namespace(self._engine, name)

    # --- RocketMQ's configuration ---

    def export_rocketmq(self, folder: str | Path, *, overwrite: bool = False) -> ExportReport:
        """Writes topics, groups and offsets as RocketMQ's JSON into `folder/config`, for a broker
        or for `import_rocketmq_config`. Files that are there are `CallerError` unless they are to
        be overwritten.

        >>> store.export_rocketmq("/tmp/exported").topics  # doctest: +SKIP
        12
        """
        self._check_open()
        return config_exchange.export_configuration(self._engine, folder, overwrite=overwrite)

    def export_rocketmq_store(
        self,
        folder: str | Path,
        *,
        archived: bool = False,
        progress: Progress | None = None,
    ) -> BrokerExport:
        """Makes a folder on which a broker of Apache RocketMQ starts (5.4; docs/outgrowing.md): the
        log, topics, groups, offsets, and all messages that wait. Full segments are linked where the
        file system can. Archived messages are left out, or written into segments if `archived`.

        The folder has the messages put before the call. Raises `CallerError` if it is there and not
        empty, `DiskFull`, `ArchiveDamaged` or `ArchiveUnavailable` if an archive can't be read.

        >>> store.export_rocketmq_store("/srv/rocketmq").linked_files  # doctest: +SKIP
        12
        """
        self._check_open()
        told = self._telling(progress)
        return export_broker_folder(self._engine, folder, archived=archived, progress=told)

    def import_rocketmq_config(self, folder: str | Path) -> ConfigImport:
        """Makes the topics, groups and offsets that RocketMQ's configuration in `folder` or
        `folder/config` speaks of (JSON or RocksDB), in one batch. Existing topics, groups and
        offsets stay as they are; an offset beyond its queue's end becomes that end. `StoreNotFound`
        if nothing is there, `FormatError` if it is broken.
        """
        self._engine.log.check_writable()
        return config_exchange.import_configuration(self._engine, folder)

    # --- durability and upkeep ---

    def flush(self) -> None:
        """Returns when everything put so far is on the disk; `FlushFailed`."""
        self._engine.log.check_writable()
        self._engine.flusher.wait(self._engine.log.end)

    def checkpoint(self) -> None:
        """Puts the index tail into RocksDB; flushes the log first. Cheap when there is nothing to
        do.
        """
        self._engine.log.check_writable()
        self._engine.upkeep.checkpoint()

    def seal(self) -> None:
        """Closes the active segment now; the next put begins a new one. Nothing if it is empty."""
        self._engine.log.check_writable()
        self._engine.upkeep.seal()

    def apply_retention(self) -> int:
        """Lets go of the segments that have to go now; returns how many went."""
        self._engine.log.check_writable()
        return self._engine.upkeep.apply_retention()

    def stats(self) -> StoreStats:
        """Figures about the store as it is now."""
        self._check_open()
        engine = self._engine
        unread, delays = 0, engine.waiting_list.stats
        appended, checkpoints = 0, DurationStats()
        if engine.log.writable:
            unread, delays = engine.upkeep.deleted_unread, engine.timers.stats
            appended = engine.upkeep.appended()
            checkpoints = engine.upkeep.checkpoint_durations.stats()
        tables = engine.group_progress.tables
        return collect(
            engine.context,
            self.recovery,
            engine.tiers,
            unread,
            tables.expired,
            tables.again,
            self.threads,
            delays(),
            appended,
            checkpoints,
        )

    def group_topics(self, group: str) -> list[str]:
        """The names of the topics in which a group ever popped or committed, but for its own
        dead-letter topics; `GroupNotFound`. A seek in RocksDB for each.

        >>> store.group_topics("billing")  # doctest: +SKIP
        ['orders']
        """
        self._check_open()
        return group_offsets.topics_of(self._engine, group)

    def catalog(self) -> Catalog:
        """Which archives there are; `tiering` reads the rows."""
        self._check_open()
        families = self._engine.index.families
        return Catalog(families.get(META, STORE_ID) or b"", list(families.rows(ARCHIVES, b"")))

    def segments(self, progress: Progress | None = None) -> list[SegmentStats]:
        """The messages of each sealed, wholly checkpointed segment, in numbers, oldest first, and
        when they were stored; from the index alone.
        """
        self._check_open()
        return segment_stats(self._engine.context, self._telling(progress))

    def verify(self, progress: Progress | None = None, *, archives: bool = False) -> VerifyReport:
        """Checks every record's CRC, and the one over the whole record of those that carry it, and
        holds the index against the log, and against the archives there are; with `archives` every
        byte of those is read and checked. Problems are listed, not raised.
        """
        self._check_open()
        if self._engine.log.writable:
            self.checkpoint()
        return verify(self._engine.context, self._telling(progress), archives=archives)

    def _telling(self, progress: Progress | None) -> Progress:
        """Tells a call's progress; the call gives up if the store is about to be closed."""

        def tell(step: str, done: int, total: int) -> None:
            self._engine.log.check_going_on()
            if progress is not None:
                progress(step, done, total)

        return tell

    # --- for `kvstore.aio` and `kvmq serve` ---

    def _say_served(self, url: str) -> None:
        """Makes an opening of the folder elsewhere raise `StoreServed` with a URL, as long as this
        store is open; an empty one: no longer.
        """
        self._engine.log.check_writable()
        self._engine.folder_lock.say_served(url)

    def _say_ending(self, *, is_ending: bool) -> None:
        """Makes calls of many steps give up at their next one (`StoreClosed`), or not any more."""
        self._engine.log.is_ending = is_ending

    def _is_safe(self) -> bool:
        """Whether `close` has come so far that all is on the disk, and checkpointed."""
        return self._engine.is_finished

    def _begin_pop(
        self,
        wake: Callable[[], None],
        group: str,
        topic: str | Sequence[str],
        wait: float,
        *asked: Any,
    ) -> tuple[list[Popped], Poll | None]:
        """A pop that doesn't hold its thread, for `kvstore.aio`. If there is nothing and `wait` is
        more than 0 s, the result has a poll, which was just looked at; `wake` is called, from any
        thread, when it is to be looked at again. `asked` is as `Pop.pop` takes it.
        """
        self._engine.log.check_writable()
        known = self._engine.groups.get(group)
        seconds, pop = check_wait(wait), self._engine.popping.pop
        asking = pop.asking(known, topic, asked)
        found = pop.look(asking) or []
        if found or not seconds:
            return found, None
        poll = pop.poll(asking, seconds, wake)
        try:
            return poll.look(), poll
        except BaseException:
            poll.end()
            raise

    def _appended_bytes(self, topics: Iterable[str]) -> dict[str, int]:
        """The bytes of the records of each topic that came since the opening, with those that
        recovery found; without the topics that are not there.
        """
        named = {name: used for name in topics if (used := self._engine.topics.find(name))}
        sizes = self._engine.index.appended.of(used.base >> 32 for used in named.values())
        return dict(zip(named, sizes, strict=True))

    def _put_now(self, messages: list[Message]) -> list[PutResult] | None:
        """As `put_batch`; None, with nothing done, if it may have to wait."""
        return self._engine.writer.put_now(messages)

    def _pop_now(self, group: str, topic: str | Sequence[str], *asked: Any) -> list[Popped] | None:
        """As `pop`; None, with nothing done, if it may have to wait, or there is nothing. `asked`
        is as `Pop.pop` takes it.
        """
        self._engine.log.check_writable()
        return self._engine.popping.pop.pop_now(self._engine.groups.get(group), topic, asked)

    def _ack_now(self, receipts: list[str]) -> list[AckResult] | None:
        """As `ack_batch`; None if it may have to wait: then it is to be called once more."""
        self._engine.log.check_writable()
        return self._engine.popping.acks.ack_now(receipts)

    def _named_in(self, receipts: list[str]) -> set[tuple[str, str]]:
        """The groups and topics of receipts; of one that is none, or whose group or topic was
        deleted, nothing.
        """
        return self._engine.popping.acks.named(receipts)

    def _has_prepared(self, topic: str) -> bool:
        """Whether messages to a topic are prepared, whichever their groups."""
        self._check_open()
        return self._engine.prepared_list.count(topic) > 0

    # --- the end ---

    def close(self) -> None:
        """Flushes, checkpoints, and lets go of the folder. Closing twice does nothing."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = (
            "closed"
            if self._engine.is_closed
            else "open"
            if self._engine.log.writable
            else "read-only"
        )
        return f"<kvstore.Store {self.path} {state}>"
