"""Makes a folder of a store on which a RocketMQ broker starts, and goes on where the store is.

The idea: the log is RocketMQ's already. Full segments get a second name (a hard link), the segment
with the end is copied. Messages that wait, delayed or prepared, are put to the log's end once more,
as they are before a segment leaves; so a broker finds them all behind one offset of their queues,
and the files beside the log say that it begins there. Segments with gaps, since their messages
are in archives or damaged, are made anew, with records that nobody reads in their gaps.

Invariants: the folder is there whole or not at all; the store's messages and files stay as they
are; no file of the folder that a broker writes to is shared with the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from kvstore.core.columns.record_columns import place_records
from kvstore.core.names import TIMER_TOPIC, TRANSACTION_HALF_TOPIC
from kvstore.engine.config_exchange import all_offsets
from kvstore.engine.engine import Engine
from kvstore.files import Files, MappedFile, local_path
from kvstore.log.segments import segment_name
from kvstore.opening.recovery import Progress
from kvstore.pop.progress import start_of
from kvstore.rocketmq.broker_files import BROKER_CONF, HALF_GROUP, broker_conf, timer_checkpoint
from kvstore.rocketmq.config_values import Offset
from kvstore.rocketmq.export import ExportReport, write_configuration
from kvstore.rocketmq.file_layouts import COMMITLOG, CONFIG, TIMER_CHECKPOINT_FILE
from kvstore.rocketmq.folder_staging import begin_staging, check_target, publish, target_errors
from kvstore.rocketmq.gaps import GapFiller, has_gap

_STAGING: Final = ".exporting"


class BrokerExport(msgspec.Struct, frozen=True):
    """The outcome of an export: the log from `first_position` to `end`; how many of its files are
    linked, copied, or made anew, since their messages were in archives, or bytes of them in no
    message (`gap_bytes`); delayed and prepared messages that wait in it; and its configuration.
    """

    folder: str
    first_position: int
    end: int
    linked_files: int
    copied_files: int
    made_files: int
    gap_bytes: int
    delayed: int
    prepared: int
    configuration: ExportReport


class _Moment(NamedTuple):
    """The store at the moment of which a broker's folder is made. The offsets of the two queues of
    messages that wait are those from which on all of them stand.
    """

    end: int
    timer_offset: int
    half_offset: int
    delayed: int
    prepared: int
    offsets: list[Offset]


def export_broker_folder(
    engine: Engine, folder: str | Path, *, archived: bool, progress: Progress
) -> BrokerExport:
    """See `Store.export_rocketmq_store`."""
    files, target = engine.config.files, local_path(folder, "an export").absolute()
    engine.log.check_writable()
    check_target(engine.path, target, files)
    staging = begin_staging(target, files, _STAGING, "export")
    with engine.upkeep.leaving:  # no segment leaves before it is linked
        moment = _gather(engine)
        log = _ExportedLog(engine, staging / COMMITLOG, moment.end)
        with target_errors(target):
            log.link(progress, archived=archived)
    with target_errors(target):
        log.complete(progress)
        written = _write_files(engine, staging, target, moment)
        publish(staging, target, files)
    return BrokerExport(
        folder=str(target),
        first_position=log.first * engine.log.segment_size,
        end=moment.end,
        linked_files=len(log.linked_files - log.made_files),
        copied_files=len(log.copied_files - log.made_files),
        made_files=len(log.made_files),
        gap_bytes=log.gap_bytes,
        delayed=moment.delayed,
        prepared=moment.prepared,
        configuration=written,
    )


def _write_files(engine: Engine, staging: Path, target: Path, moment: _Moment) -> ExportReport:
    """Writes the files beside the log, which will be in `target`."""
    files, now = engine.config.files, engine.config.clock.now_ms()
    written = write_configuration(
        staging,
        files,
        topics=engine.topics.all(),
        groups=engine.groups.all(),
        offsets=moment.offsets,
        now_ms=now,
    )
    checkpoint = timer_checkpoint(moment.timer_offset, now)
    files.write_whole(staging / CONFIG / TIMER_CHECKPOINT_FILE, checkpoint)
    conf = broker_conf(target, engine.log.segment_size)
    files.write_whole(staging / BROKER_CONF, conf)
    names = [str(target / Path(name).relative_to(staging)) for name in written.files]
    return msgspec.structs.replace(written, files=names)


def _gather(engine: Engine) -> _Moment:
    """Puts all messages that wait to the log's end; nothing is delivered or ended meanwhile."""
    timers, transactions = engine.timers.pending, engine.transactions.pending
    with timers.lock, transactions.lock:
        engine.upkeep.checkpoint()  # so that the index has all of them
        segments = engine.log.segments.numbers
        timer_offset = _next_offset(engine, TIMER_TOPIC)
        half_offset = _next_offset(engine, TRANSACTION_HALF_TOPIC)
        timers.leave(segments)
        engine.transactions.leave(segments)
        offsets = _begun(engine, {(g, t, q): at for g, t, q, at in all_offsets(engine)})
        offsets.append((HALF_GROUP, TRANSACTION_HALF_TOPIC, 0, half_offset))
        end = engine.log.end
        engine.flusher.wait(end)
        return _Moment(
            end,
            timer_offset,
            half_offset,
            sum(engine.timer_rows.counts().values()),
            sum(engine.prepared_rows.counts().values()),
            offsets,
        )


def _begun(engine: Engine, known: dict[tuple[str, str, int], int]) -> list[Offset]:
    """The known offsets, and those at which groups begin in the other queues of the same topics:
    RocketMQ lets them begin at the end.
    """
    for group in engine.groups.all():
        for number in engine.offsets.topics(group.id):
            name = engine.topics.name_of(number)
            if name is None:
                continue
            topic = engine.topics.get(name)
            for queue in range(topic.read_queues):
                if (group.name, name, queue) not in known:
                    first = start_of(engine.reader, engine.offsets, group, topic, queue)
                    known[group.name, name, queue] = first
    return [(*key, offset) for key, offset in known.items()]


def _next_offset(engine: Engine, topic: str) -> int:
    found = engine.topics.find(topic)
    return 0 if found is None else engine.reader.bounds(found.key(0)).next_offset


class _ExportedLog:
    """The log of a broker's folder, up to `end`. It has its own names of the store's segments once
    they are linked; from then on they may leave the store.
    """

    def __init__(self, engine: Engine, folder: Path, end: int) -> None:
        self._engine = engine
        self._files: Files = engine.config.files
        self._size = engine.log.segment_size
        self._folder = folder
        self._end = end
        self._last = end // self._size
        self._missing: list[int] = []
        self._archives: list[int] = []
        self.first = 0
        """The number of the first segment."""
        self.linked_files, self.copied_files, self.made_files = set[int](), set[int](), set[int]()
        """The numbers of segments."""
        self.gap_bytes = 0

    def link(self, progress: Progress, *, archived: bool) -> None:
        """Links the segments that the store has, and notes those that archives have."""
        segments = self._engine.log.segments
        there = set(segments.numbers)
        self.first = min(there)
        if archived:
            archives = self._engine.archives()
            self._archives = sorted(archives.numbers())
            spans = [archives.span(number) for number in self._archives]
            self.first = min([self.first, *(first // self._size for first, _ in spans)])
        count = self._last - self.first
        for done, number in enumerate(range(self.first, self._last)):
            progress("linking the log", done, count)
            if number not in there:
                self._missing.append(number)
            elif self._files.link_or_copy(segments.path(number), self._path(number)):
                self.linked_files.add(number)
            else:
                self.copied_files.add(number)
        self._copy_last()

    def complete(self, progress: Progress) -> None:
        """Makes the segments that the store has not, and fills the gaps of all."""
        for number in self._missing:
            self._files.create(self._path(number), self._size)
        if self._missing:
            self._write_archived(progress)
        filler = GapFiller(self._engine.config.clock.now_ms())
        self.made_files.update(self._missing)
        count = self._last - self.first
        for done, number in enumerate(range(self.first, self._last)):
            progress("writing the log", done, count)
            if number not in self.made_files and self._has_gap(number):
                # The store may have the file, too.
                self._files.copy(self._path(number), self._path(number))
                self.made_files.add(number)
            if number in self.made_files:
                self._fill(number, filler)

    def _path(self, number: int) -> Path:
        return self._folder / segment_name(number * self._size)

    def _copy_last(self) -> None:
        """Copies the segment with the end; bytes behind that were put meanwhile."""
        segments = self._engine.log.segments
        if not segments.has(self._last):
            self._files.create(self._path(self._last), self._size)
            return
        self._files.copy(segments.path(self._last), self._path(self._last))
        self.copied_files.add(self._last)
        with self._mapped(self._last) as copy:
            copy.zero_from(self._end % self._size)

    def _has_gap(self, number: int) -> bool:
        with self._mapped(number, writable=False) as segment:
            return has_gap(segment.buffer, number * self._size)

    def _fill(self, number: int, filler: GapFiller) -> None:
        with self._mapped(number) as segment:
            self.gap_bytes += filler.fill(segment, number * self._size)
            segment.sync()

    def _write_archived(self, progress: Progress) -> None:
        """Writes the records of all archives to the places at which they stood in the log."""
        archives, size = self._engine.archives(), self._size
        missing = set(self._missing)
        for done, archive in enumerate(self._archives):
            progress("writing archived messages", done, len(self._archives))
            with ExitStack() as opened:
                maps: dict[int, MappedFile] = {}
                for positions, data, bounds in archives.records(archive):
                    for number in np.unique(positions // size).tolist():
                        if number not in missing:
                            continue
                        if number not in maps:
                            maps[number] = opened.enter_context(self._mapped(number))
                            # A write through the map finds blocks for all its bytes.
                            maps[number].reserve(size)
                        room = maps[number].buffer
                        place_records(room, number * size, positions, data, bounds)

    @contextmanager
    def _mapped(self, number: int, *, writable: bool = True) -> Iterator[MappedFile]:
        mapped = self._files.map(self._path(number), writable=writable)
        try:
            yield mapped
        finally:
            mapped.close()
