"""Stream reader: `spark.readStream.format("kvmq")`.

The idea: Spark asks at each trigger how far the next batch goes, writes that to its checkpoint, and
only then has the batch planned and read. The reader lives on the driver as long as the stream runs,
and keeps what it has seen of archives. Tasks are sent it without that.

Invariants: two offsets make the same batch whenever it is read; an offset is only ever another if
there are messages for it; nothing that this keeps is needed to go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from kvstore.errors import ArchiveMissing, ConfigError
from tiering.errors import MessagesLost
from tiering.spark.arrow import as_asked
from tiering.spark.listing import ListedArchive, Opener
from tiering.spark.options import EARLIEST, LATEST, ReadOptions
from tiering.spark.session import tune_process
from tiering.spark.splits import Split, code_of, queue_of
from tiering.spark.stream.batches import Cut, Cutter, Limits, candidates, lost, plan, span_of
from tiering.spark.stream.offsets import (
    Frontier,
    StreamOffset,
    read_offset,
    read_starting,
    starting,
    topics_of,
    wants_latest,
)
from tiering.spark.stream.stream_view import (
    DirectoryTables,
    PlaceLooker,
    StoreLooker,
    StreamView,
    looker,
)
from tiering.spark.wanted import QueryFilter

if TYPE_CHECKING:
    import pyarrow as pa

Json = dict[str, Any]
_LOOKS: Final = 5
_SCANNED_MAX: Final = 64 << 20
"""Bytes of the log that are looked at rather than asking the index for every queue's end."""
_log = logging.getLogger("kvmq")


class KvmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that Spark calls, on the driver and in tasks; see the module."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._of = None if options.topics is None else sorted(set(options.topics))
        self._done: set[ListedArchive] = set()
        self._cap: Frontier | None = None
        self._is_checked = False
        """Whether the offset that a stream went on from was compared with the store."""
        self._idle: tuple[Json, StreamView, int] | None = None
        """The last look that found nothing to do: the offset, the view, and the position up to
        which the log was looked at."""

    def __reduce__(self) -> tuple[type[KvmqStreamReader], tuple[ReadOptions, pa.Schema]]:
        # A task needs nothing that the driver has seen.
        return KvmqStreamReader, (self._options, self._schema)

    # Made on first use: tasks use none of them.

    @cached_property
    def opener(self) -> Opener:
        """Opens the archives that the driver reads."""
        return Opener(self._options)

    @cached_property
    def _tables(self) -> DirectoryTables:
        return DirectoryTables(self.opener)

    @cached_property
    def looker(self) -> StoreLooker | PlaceLooker:
        """Looks at what the store, or the place, has now."""
        return looker(self._options, self._tables)

    # --- where a stream begins ---

    def initialOffset(self) -> Json:  # noqa: N802 # Spark's name, as those below
        """Where a new stream begins."""
        text = self._options.starting_offsets
        before = self.looker.look()
        if text == EARLIEST:
            return StreamOffset(store=before.store, of=self._of).as_json()
        if text == LATEST:
            return self._offset(*self._reached(before))
        asked = read_starting(text)
        latest = self._reached(before)[1].ends if wants_latest(asked) else {}
        view = self.looker.look()
        ids = {name: topic.id for name, topic in view.topics.items()}
        return self._offset(view, Frontier(dict(starting(asked, ids, latest))))

    def _offset(self, view: StreamView, reached: Frontier) -> Json:
        return StreamOffset(
            store=view.store,
            of=self._of,
            position=reached.position,
            archives=reached.archives,
            topics=topics_of(reached.ends, view.names()),
        ).as_json()

    def _reached(self, before: StreamView) -> tuple[StreamView, Frontier]:
        """The view, and the ends of all queues that are wanted. `before` is the view before."""
        reach = self.looker.reach(None)
        # The view after the position: a topic that comes between the two has nothing below it.
        view = self.looker.look(anew=True)
        names = view.names()
        ends = {
            code_of(*queue): end
            for queue, (_, end) in reach.queues.items()
            if (name := names.get(queue[0])) is not None and self._wants(name)
        }
        position = reach.position if view.position else 0
        return view, Frontier(ends, position, before.next_archive)

    def _wants(self, name: str) -> bool:
        return self._options.topics is None or name in self._options.topics

    # --- where a batch ends ---

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The options' limit for a batch. Spark takes one number of a Python source; the other is
        checked beside it.
        """
        options = self._options
        if options.max_messages_per_trigger is not None:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the end of the stream at all that there is now."""
        _, self._cap = self._reached(self.looker.look())

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """How far the log goes, for the query's progress; None for archives alone."""
        view = self.looker.look()
        return {"store": view.store, "position": view.position} if view.position else None

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Where a batch that begins at `start` ends. Raises MessagesLost."""
        view = self.looker.look()
        if self._idle is not None and self._idle[:2] == (start, view):
            return start
        offset = self._parsed(start, view)
        if not self._is_checked:
            self._check_reach(offset, view)
            self._is_checked = True
        begin = offset.frontier(self._of)
        if self._idle is not None and self._idle[0] == start:
            begin = begin._replace(position=max(begin.position, self._idle[2]))
        view, cut = self._cut_again(view, begin, _limits(self._options, limit))
        if all(end == begin.ends.get(code, 0) for code, end in cut.end.ends.items()):
            self._idle = start, view, cut.end.position
            return start
        self._check(lost(begin.ends, self._held(cut.gaps), view), view)
        return self._offset(view, cut.end)

    def _parsed(self, given: Json, view: StreamView) -> StreamOffset:
        offset = read_offset(given)
        if offset.store is not None and view.store is not None and offset.store != view.store:
            raise ConfigError(
                f"the checkpoint is of store {offset.store}, and {self._options.path} is store "
                f"{view.store}: begin anew with another checkpoint"
            )
        return offset

    def _check_reach(self, offset: StreamOffset, view: StreamView) -> None:
        """Raises ConfigError for an offset that the store never came to."""
        names = view.names()
        ends = {code: end for code, end in offset.ends().items() if names.get(queue_of(code)[0])}
        if not view.position or not ends:
            return
        reach = self.looker.reach(map(queue_of, ends))
        beyond = {
            code: end
            for code, end in ends.items()
            if end > reach.queues.get(queue_of(code), (0, 0))[1]
        }
        # The index does not know messages behind the last checkpoint yet.
        if offset.position > view.position or (beyond and offset.position <= reach.position):
            code = next(iter(beyond), next(iter(ends)))
            topic, queue = queue_of(code)
            raise ConfigError(
                f"the stream is to go on at offset {ends[code]} of queue {queue} of topic "
                f"{names[topic]}, and position {offset.position} of the log; the store has not "
                "come that far: it may be an older copy, or was not opened for writing since a "
                "power cut. Open it, or begin anew with another checkpoint, or starting_offsets"
            )

    def _cut_again(
        self, view: StreamView, start: Frontier, limits: Limits | None
    ) -> tuple[StreamView, Cut]:
        for _ in range(_LOOKS):
            try:
                return self._cut(view, start, limits)
            except ArchiveMissing:
                # Messages that left the log are in an archive by now, or went.
                view = self.looker.look(anew=True)
        return self._cut(view, start, limits)

    def _cut(
        self, view: StreamView, start: Frontier, limits: Limits | None
    ) -> tuple[StreamView, Cut]:
        if limits is not None or not self._is_far(view, start):
            cutter = Cutter(
                view, start, limits or Limits(), self._options, self._wants, cap=self._cap
            )
            return view, cutter.cut(self._tables, self.opener.files, self._done)
        reached = self._cap
        if reached is None:
            view, reached = self._reached(view)
        known = start.ends
        gaps = [code for code, end in known.items() if reached.ends.get(code, 0) > end]
        ends = {**known, **{c: max(e, known.get(c, 0)) for c, e in reached.ends.items()}}
        position = max(reached.position, start.position)
        return view, Cut(reached._replace(ends=ends, position=position), gaps)

    def _is_far(self, view: StreamView, start: Frontier) -> bool:
        """Whether asking for the ends of all queues is cheaper than looking at all that is new."""
        if not view.position:
            return False
        new = sum(max(part.end - max(part.begin, start.position), 0) for part in view.log)
        return new > _SCANNED_MAX or any(
            one.is_from(start.archives) and one.held not in self._done for one in view.archives
        )

    # --- lost messages ---

    def _held(self, codes: Iterable[int]) -> dict[int, int]:
        """The first offsets that some queues hold."""
        queues = [queue_of(code) for code in codes]
        if not queues:
            return {}
        return {code_of(*q): first for q, (first, _) in self.looker.reach(queues).queues.items()}

    def _check(self, gone: Mapping[int, tuple[int, int]], view: StreamView) -> None:
        names = view.names()
        for code, (first, end) in gone.items():
            topic, queue = queue_of(code)
            name = names.get(topic, str(topic))
            told = (
                f"queue {queue} of topic {name} has lost its messages from offset {first} to "
                f"before {end}, which the stream was to read next: retention or an erasure came "
                "before it (or an attach has left these offsets out, and nothing is lost)"
            )
            if self._options.fail_on_data_loss:
                raise MessagesLost(
                    f"{told}; set fail_on_data_loss to false to go on behind them",
                    name, queue, first, end,
                )  # fmt: skip
            _log.warning("%s", told)

    # --- the parts of a batch ---

    def partitions(self, start: Json, end: Json) -> list[Split]:
        """The parts of a batch. Raises MessagesLost, ArchiveDamaged, PlaceError."""
        if start == end:
            return []
        view = self.looker.look()
        since, until = self._parsed(start, view), self._parsed(end, view)
        span = span_of(since, until, view)
        archives = candidates(span, view, self._done)
        if archives:
            columns = (one.tolist() for one in span.ranges[:3])
            later, homes = self.looker.homes(zip(*columns, strict=True))
            if later is not view:
                view, span = later, span_of(since, until, later)
                archives = candidates(span, view, self._done)
            if homes is not None:
                archives = [one for one in archives if one.number in homes]
        held = [one.held for one in archives]
        planned = plan(span, view, self._options, self.opener, self._tables, held)
        if self._is_doubtful(view, span.begin):
            known = since.ends()
            late = planned.first > span.ranges.low
            rows = zip(
                span.ranges.codes[late].tolist(), span.ranges.low[late].tolist(), strict=True
            )
            due = {code: low for code, low in rows if code in known}
            self._check(lost(due, self._held(due), view), view)
        return planned.splits

    def _is_doubtful(self, view: StreamView, begin: int) -> bool:
        """Whether something of a batch may have gone: not if the log has all from its beginning."""
        if not view.log or view.log[0].begin > begin:
            return True
        return any(one.held not in self._done for one in view.archives)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A part's messages, as record batches."""
        from tiering.spark.part_reader import PartReader  # noqa: PLC0415

        assert isinstance(partition, Split), "they are what `partitions` gave"
        tune_process()
        # The topics are those of the offsets, whatever the options say by now.
        options = self._options
        wanted = QueryFilter(keys=None if options.keys is None else frozenset(options.keys))
        reader = PartReader(options, wanted, self._schema.names, is_stream=True)
        return as_asked(reader.batches(partition), self._schema)


def _limits(options: ReadOptions, limit: ReadLimit) -> Limits | None:
    """The limits of a batch; None: all there is, whatever the options say."""
    if isinstance(limit, ReadAllAvailable):
        return None
    messages = options.max_messages_per_trigger or inf
    size = options.max_bytes_per_trigger or inf
    if isinstance(limit, ReadMaxRows):
        messages = min(messages, limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        size = min(size, limit.max_bytes)
    return Limits(messages, size)
