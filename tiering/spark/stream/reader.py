"""Stream reader: `spark.readStream.format("kvmq")`.

The idea: Spark asks at each trigger how far the next batch goes, writes that to its checkpoint, and
only then has the batch planned and read. This object lives on the driver as long as the stream
runs: it keeps what it has seen of archives. The reader of a part is made anew wherever tasks run.

Invariants: two offsets make the same batch whenever it is read; an offset is only ever another if
there are messages for it; nothing that this keeps is needed to go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from tiering.spark.splits import Split
from tiering.spark.stream.batches import (
    BatchStart,
    Cut,
    Cutter,
    Limits,
    StreamEnd,
    candidates,
    lost,
    plan,
    span_of,
)
from tiering.spark.stream.offsets import (
    StreamOffset,
    code_of,
    queue_of,
    read_offset,
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
        self._driver: _Driver | None = None

    @property
    def _on_driver(self) -> _Driver:
        # Made on first use: this object is also made for tasks, which need no driver.
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def initialOffset(self) -> Json:  # noqa: N802 # Spark's name, as those below
        """Where a new stream begins."""
        return self._on_driver.first().as_json()

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

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Where a batch that begins at `start` ends. Raises MessagesLost."""
        return self._on_driver.latest(start, _limits(self._options, limit))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the end of the stream at all that there is now."""
        self._on_driver.prepare()

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """How far the log goes, for the query's progress; None for archives alone."""
        return self._on_driver.report()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The parts of a batch. Raises MessagesLost, ArchiveDamaged, PlaceError."""
        return self._on_driver.partitions(start, end)

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

    def stop(self) -> None:
        """Drops everything that was kept."""
        self._driver = None


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


class _Driver:
    """The reader's part on the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._opener = Opener(options)
        self._tables = DirectoryTables(self._opener)
        self._looker: StoreLooker | PlaceLooker = looker(options, self._tables)
        self._of = None if options.topics is None else sorted(set(options.topics))
        self._topics = frozenset(self._of or ())
        self._done: set[ListedArchive] = set()
        self._cap: StreamEnd | None = None
        self._is_checked = False
        """Whether the offset that a stream went on from was compared with the store."""
        self._idle: tuple[Json, StreamView, int] | None = None
        """The last look that found nothing to do: the offset, the view, and the position up to
        which the log was looked at."""

    # --- where a stream begins ---

    def first(self) -> StreamOffset:
        """See `initialOffset`."""
        text = self._options.starting_offsets
        before = self._looker.look()
        if text == EARLIEST:
            return StreamOffset(store=before.store, of=self._of)
        if text == LATEST:
            return self._offset(*self._reached(before))
        latest = dict(self._reached(before)[1]) if wants_latest(text) else None
        view = self._looker.look()
        ids = {name: topic.id for name, topic in view.topics.items()}
        return self._offset(view, dict(starting(text, ids, latest)), 0, 0)

    def _offset(
        self, view: StreamView, ends: Mapping[int, int], position: int, archives: int
    ) -> StreamOffset:
        return StreamOffset(
            store=view.store,
            of=self._of,
            position=position,
            archives=archives,
            topics=topics_of(ends, view.names()),
        )

    def _reached(self, before: StreamView) -> tuple[StreamView, Mapping[int, int], int, int]:
        """The view, the ends of all queues that are wanted, the position up to which these are, and
        the number from which on archives may have more. `before` is the view before.
        """
        reach = self._looker.reach(None)
        # The view after the position: a topic that comes between the two has nothing below it.
        view = self._looker.look(anew=True)
        names = view.names()
        ends = {
            code_of(*queue): end
            for queue, (_, end) in reach.queues.items()
            if (name := names.get(queue[0])) is not None and self._wants(name)
        }
        return view, ends, reach.position if view.position else 0, before.next_archive

    def _wants(self, name: str) -> bool:
        return self._of is None or name in self._topics

    # --- where a batch ends ---

    def prepare(self) -> None:
        """See `prepareForTriggerAvailableNow`."""
        _, ends, position, archives = self._reached(self._looker.look())
        self._cap = StreamEnd(ends, position, archives)

    def report(self) -> Json | None:
        """See `reportLatestOffset`."""
        view = self._looker.look()
        return {"store": view.store, "position": view.position} if view.position else None

    def latest(self, given: Json, limits: Limits | None) -> Json:
        """See `latestOffset`."""
        view = self._looker.look()
        if self._idle is not None and self._idle[:2] == (given, view):
            return given
        offset = self._read(given, view)
        if not self._is_checked:
            self._check_reach(offset, view)
            self._is_checked = True
        start = self._start(offset, given)
        view, cut = self._cut_again(view, start, limits)
        if all(end == start.ends.get(code, 0) for code, end in cut.ends.items()):
            self._idle = given, view, cut.position
            return given
        self._check(lost(start.ends, self._held(cut.gaps), view), view)
        live = {id_ for id_, name in view.names().items()}
        ends = {code: end for code, end in cut.ends.items() if queue_of(code)[0] in live}
        return self._offset(view, ends, cut.position, cut.archives).as_json()

    def _read(self, given: Json, view: StreamView) -> StreamOffset:
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
        reach = self._looker.reach(map(queue_of, ends))
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

    def _start(self, offset: StreamOffset, given: Json) -> BatchStart:
        """The start of the next batch, as far as it is known."""
        if offset.of != self._of:
            # The earlier batches were of other topics.
            start = BatchStart(offset.ends())
        else:
            start = BatchStart(offset.ends(), offset.position, offset.archives)
        if self._idle is not None and self._idle[0] == given:
            start = start._replace(position=max(start.position, self._idle[2]))
        return start

    def _cut_again(
        self, view: StreamView, start: BatchStart, limits: Limits | None
    ) -> tuple[StreamView, Cut]:
        for _ in range(_LOOKS):
            try:
                return self._cut(view, start, limits)
            except ArchiveMissing:
                # Messages that left the log are in an archive by now, or went.
                view = self._looker.look(anew=True)
        return self._cut(view, start, limits)

    def _cut(
        self, view: StreamView, start: BatchStart, limits: Limits | None
    ) -> tuple[StreamView, Cut]:
        if limits is None and self._is_far(view, start):
            later, (ends, position, archives) = view, self._cap or StreamEnd({}, 0, 0)
            if self._cap is None:
                later, ends, position, archives = self._reached(view)
            whole = {**start.ends, **{c: max(e, start.ends.get(c, 0)) for c, e in ends.items()}}
            gaps = {code: -1 for code, end in start.ends.items() if ends.get(code, 0) > end}
            return later, Cut(whole, max(position, start.position), archives, gaps)
        cutter = Cutter(
            view,
            start,
            limits or Limits(),
            self._wants,
            cap=self._cap,
            skips_damage=self._options.damaged == "skip",
        )
        return view, cutter.cut(self._tables, self._opener.files, self._done)

    def _is_far(self, view: StreamView, start: BatchStart) -> bool:
        """Whether asking for the ends of all queues is cheaper than looking at all that is new."""
        if not view.position:
            return False
        new = sum(part.end - max(part.begin, start.position) for part in view.log
                  if part.end > start.position)  # fmt: skip
        return new > _SCANNED_MAX or any(
            one.is_from(start.archives) and one.held not in self._done for one in view.archives
        )

    # --- lost messages ---

    def _held(self, codes: Iterable[int]) -> dict[int, int]:
        """The first offsets that some queues hold."""
        queues = [queue_of(code) for code in codes]
        if not queues:
            return {}
        return {code_of(*q): first for q, (first, _) in self._looker.reach(queues).queues.items()}

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
        """See `KvmqStreamReader.partitions`."""
        if start == end:
            return []
        view = self._looker.look()
        since, until = self._read(start, view), self._read(end, view)
        span = span_of(since, until, view)
        archives = candidates(span, view, self._done)
        if archives:
            columns = (span.codes, span.low, span.end)
            later, homes = self._looker.homes(zip(*(c.tolist() for c in columns), strict=True))
            if later is not view:
                view, span = later, span_of(since, until, later)
                archives = candidates(span, view, self._done)
            if homes is not None:
                archives = [one for one in archives if one.number in homes]
        held = [one.held for one in archives]
        planned = plan(span, view, self._options, self._opener, self._tables, held)
        if self._is_doubtful(view, span.begin):
            known = since.ends()
            due = {
                code: low
                for code, low, first in zip(
                    span.codes.tolist(), span.low.tolist(), planned.first.tolist(), strict=True
                )
                if first > low and code in known
            }
            self._check(lost(due, self._held(due), view), view)
        return planned.splits

    def _is_doubtful(self, view: StreamView, begin: int) -> bool:
        """Whether something of a batch may have gone: not if the log has all from its beginning."""
        return not view.log or view.log[0].begin > begin or bool(
            [one for one in view.archives if one.held not in self._done]
        )  # fmt: skip
