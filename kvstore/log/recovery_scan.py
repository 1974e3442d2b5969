"""Recovery scan: recovery's reading half, from a known position to the end of the log, past damage.

The idea: records are checked in batches and handed on to be indexed. Where one is bad, the durable
end decides: below it the disk had the record whole, so this is corruption, which is noted and
skipped up to the next good record; at or above it this is the torn tail of a crash, and the log
ends here.

Invariants: nothing is changed here, the caller cuts; every byte from start to end is a record
handed on, a blank, or a `Damage` in the report; damage below the durable end never ends the log. A
sound file that can't be opened is no damage: `SegmentDamaged` is raised.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from typing import Final, NamedTuple

import msgspec

from kvstore.core.records import check_record
from kvstore.core.scan import Scan, scan
from kvstore.errors import RecordDamaged, SegmentDamaged
from kvstore.files import SegmentBuffer
from kvstore.log.segments import Segments
from kvstore.record.walk import next_good

_BATCH: Final = 16384


class Damage(msgspec.Struct, frozen=True):
    """Bytes of the log, from `position` to before `end`, that are not what was written."""

    position: int
    end: int
    reason: str


class Chunk(NamedTuple):
    """Good records, one behind the other: `buffer` index = position - `base`."""

    buffer: SegmentBuffer
    base: int
    found: Scan
    end: int
    """Everything below this position has been seen."""


class LogScan:
    """One pass over the log, without the segments that are `gone` from it. `end`, `damage`, `torn`
    are complete when the chunks are used up.
    """

    def __init__(
        self,
        segments: Segments,
        start: int,
        durable: int,
        *,
        property_crc: bool = False,
        gone: Collection[int] = (),
    ) -> None:
        self._gone = gone
        self._segments = segments
        self._size = segments.size
        self._durable = durable
        self._property_crc = property_crc
        self.end = start
        self.records = 0
        self.damage: list[Damage] = []
        self.torn: Damage | None = None

    def chunks(self) -> Iterator[Chunk]:
        """Checks records from the start on; yields them in batches."""
        numbers = self._segments.numbers
        last = numbers[-1] if numbers else -1
        while self.end // self._size <= last:
            number = self.end // self._size
            stop = (number + 1) * self._size
            if number in self._gone:
                self.end = stop
                continue
            try:
                buffer = self._segments.buffer(number)
            except SegmentDamaged as e:
                self._segments.rescan()
                if number < self._segments.oldest:
                    self.end = stop  # the log's writer has removed it just now
                    continue
                if self._segments.is_usable(number):
                    # The file may be readable again tomorrow, with messages whose offsets would be
                    # given to others if the log went on without it today.
                    raise SegmentDamaged(
                        f"{e}; it has to be read to go on where the log ends: make it readable, or "
                        "move it out of the folder to go on without its messages",
                        e.path,
                    ) from e
                # No position is given twice: a file that can't be used is passed over whole.
                self.damage.append(Damage(self.end, stop, str(e)))
                self.end = stop
                continue
            if len(buffer) < self._size:
                stop = number * self._size + len(buffer)
            more = yield from self._segment(buffer, number * self._size, stop)
            if not more:
                return

    def _segment(self, buffer: SegmentBuffer, base: int, stop: int) -> Generator[Chunk, None, bool]:
        """Scans one segment; the generator's value says whether the log goes on behind it."""
        while True:
            found = scan(
                buffer,
                self.end - base,
                stop - base,
                base,
                _BATCH,
                property_crc=self._property_crc,
                with_names=True,
                whole_from=self._durable,
            )
            self.end = base + found.end
            self.records += len(found)
            if len(found):
                yield Chunk(buffer, base, found, self.end)
            if found.stop == "limit":
                continue
            if found.stop in ("blank", "end"):
                self.end = base + self._size
                return True
            if not self._pass_over(buffer, base, stop, found.stop):
                return False
            if self.end >= base + self._size:
                return True

    def _pass_over(self, buffer: SegmentBuffer, base: int, stop: int, why: str) -> bool:
        """Skips bytes that are no record; False if the log ends here."""
        reason = (
            "zeros where records should be" if why == "zeros" else self._reason(buffer, base, stop)
        )
        if self.end >= self._durable:
            if why != "zeros":
                self.torn = Damage(self.end, stop, reason)
            return False
        at = next_good(
            buffer, base, self.end - base + 1, stop - base, property_crc=self._property_crc
        )
        until = base + at if at >= 0 else base + self._size
        # The bad bytes may reach over the durable end: they are corruption below it, a torn tail
        # above.
        until = min(until, self._durable)
        self.damage.append(Damage(self.end, until, reason))
        self.end = until
        return True

    def _reason(self, buffer: SegmentBuffer, base: int, stop: int) -> str:
        try:
            check_record(
                buffer, self.end - base, stop - base, self.end, property_crc=self._property_crc
            )
        except RecordDamaged as e:
            return str(e)
        return f"record at {self.end} is torn: there are zeros in its topic or properties"
