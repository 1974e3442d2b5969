"""Scale: the same operations in a store of 1, 4 and 16 million messages, as ratios.

The idea: one store grows, and at each size the same number of operations of each kind is timed;
what counts is the rate of the larger by that of the smallest, since all are from one run on one
machine. Where others use the machine as well, that tells little: so each is also given by the time
that the process had of the processors, for puts with all that is done in the background. Segments
are small enough that the smallest size has four: what costs something a segment shows. `--messages`
sets the smallest size.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

import kvstore
from bench.figure import Figure, Options
from kvstore import Message, StoreConfig
from kvstore.cli.trial import measure
from kvstore.cli.trial.measure import Load, key_of, topic_of
from kvstore.clock import SystemClock

_MESSAGES: Final = 1_000_000
_FACTORS: Final = (1, 4, 16)
_OPERATIONS: Final = 20_000
_OPENINGS: Final = 5
_RECORD: Final = 300
"""Bytes of a record of 128 B, and a bit."""
_SETTLING_S: Final = 120.0
_GROUP: Final = "scale"

_clock = SystemClock()
Rates = dict[str, float]


class Pace(NamedTuple):
    """How many a second, and how many a second of the processors."""

    wall: float
    processor: float


class _Scaled:
    """The store, and what was put so far."""

    def __init__(self, folder: Path, load: Load, segment_size: int) -> None:
        self.folder, self.load = folder, load
        self.config = StoreConfig(segment_size=segment_size, watermarks=(0.97, 0.98, 0.99))
        self.store = kvstore.open(folder, self.config)
        measure.create_topics(self.store, load)
        self.store.create_group(_GROUP)
        self.put = 0
        self._coming: Iterator[Message] = measure.messages(load)
        self._places: NDArray[np.int32] = measure.drawn_queues(load)
        least = load.messages // _FACTORS[-1]
        self._operations = min(_OPERATIONS, max(least // 50, 100))
        self._rng = np.random.default_rng(load.seed + 3)

    def grow(self, size: int) -> Pace:
        """Put up to `size` messages; the pace of the last quarter of the smallest size."""
        window = max(self.load.messages // _FACTORS[-1] // 4, 1)
        seconds = used = counted = 0.0
        while chunk := list(islice(self._coming, min(4096, size - self.put))):
            begin, began = _clock.monotonic(), time.process_time()
            for at in range(0, len(chunk), self.load.batch):
                self.store.put_batch(chunk[at : at + self.load.batch])
            self.put += len(chunk)
            if self.put > size - window:
                seconds += _clock.monotonic() - begin
                used += time.process_time() - began
                counted += len(chunk)
        self.store.checkpoint()
        return Pace(counted / seconds, counted / used)

    def settle(self) -> None:
        """Waits until the housekeeper has nothing to do, so that the calls are timed alone."""
        until = _clock.monotonic() + _SETTLING_S
        index = self.store._engine.index
        while (index.seal_due() or index.merge_due()) and _clock.monotonic() < until:
            _clock.sleep(0.1)

    def open(self) -> Pace:
        """Openings a second, of the store closed in order."""

        def one() -> None:
            self.store.close()
            self.store = kvstore.open(self.folder, self.config)

        return _rate(one, [()] * _OPENINGS)

    def get(self) -> Pace:
        """Gets a second of messages drawn at random."""
        held = np.bincount(self._places[: self.put], minlength=self.load.topics * self.load.queues)
        places = self._rng.choice(np.flatnonzero(held), self._operations)
        offsets = self._rng.integers(0, held[places])
        return _rate(
            lambda place, offset: self.store.get(*self._queue(place), offset),
            list(zip(places.tolist(), offsets.tolist(), strict=True)),
        )

    def query(self) -> Pace:
        """Queries a second of keys that one message has."""
        numbers = self._rng.integers(0, self.put, self._operations).tolist()
        wanted = [(self._queue(int(self._places[n]))[0], key_of(n)) for n in numbers]
        return _rate(self.store.query, wanted)

    def query_nowhere(self) -> Pace:
        """Queries a second of keys that no message has."""
        numbers = self._rng.integers(0, 1 << 40, self._operations).tolist()
        return _rate(self.store.query, [(topic_of(0), f"nowhere-{n}") for n in numbers])

    def find_a_time(self) -> Pace:
        """Offsets by time a second."""
        low, high = (self.store.get(topic_of(0), 0, at).stored_at for at in (0, self._last()))
        times = self._rng.integers(low, high + 1, self._operations // 10).tolist()
        return _rate(self.store.offset_at, [(topic_of(0), 0, time) for time in times])

    def pop(self) -> Pace:
        """Messages a second that are popped and acknowledged one by one."""
        store, topic = self.store, topic_of(1 % self.load.topics)

        def one() -> None:
            for popped in store.pop(_GROUP, topic, limit=1):
                store.ack(popped.receipt)

        return _rate(one, [()] * self._operations)

    def _last(self) -> int:
        return self.store.bounds(topic_of(0), 0).next_offset - 1

    def _queue(self, place: int) -> tuple[str, int]:
        return topic_of(place // self.load.queues), place % self.load.queues


def _rate(call: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> Pace:
    begin, began = _clock.monotonic(), time.process_time()
    for some in arguments:
        call(*some)
    seconds, used = _clock.monotonic() - begin, time.process_time() - began
    return Pace(len(arguments) / seconds, len(arguments) / used)


def run(folder: Path, options: Options) -> list[Figure]:
    """The speed of equal operations at 1 M, 4 M and 16 M messages, as ratios."""
    least = options.messages or _MESSAGES
    load = Load(
        messages=least * _FACTORS[-1],
        body=options.size or 128,
        topics=options.topics or 8,
        queues=options.queues or 8,
    )
    wanted = load.messages * (_RECORD + load.body)
    if shutil.disk_usage(folder).free < wanted:
        raise RuntimeError(
            f"{wanted >> 30} GiB of disk are needed in {folder}, which has less free; name another "
            "with --dir, or a smaller --messages"
        )
    segment = max(1 << 16, 1 << (least * _RECORD // 4).bit_length() - 1)
    scaled = _Scaled(folder / "store", load, segment)
    try:
        found = [_measured(scaled, least * factor) for factor in _FACTORS]
    finally:
        scaled.store.close()
    smallest = found[0]
    figures = [Figure(f"{name}, {_said(least)}", rate, "/s") for name, rate in smallest.items()]
    for factor, rates in zip(_FACTORS[1:], found[1:], strict=True):
        figures += [
            Figure(f"{name}, {_said(least * factor)}", 100 * rate / smallest[name], "% of smallest")
            for name, rate in rates.items()
        ]
    return [msgspec.structs.replace(figure, note=f"segments of {segment} B") for figure in figures]


def _measured(scaled: _Scaled, size: int) -> Rates:
    paces = {"put(32)": scaled.grow(size)}
    scaled.settle()
    paces["open"] = scaled.open()
    scaled.settle()
    paces["get"] = scaled.get()
    paces["query"] = scaled.query()
    paces["query, nowhere"] = scaled.query_nowhere()
    paces["offset by time"] = scaled.find_a_time()
    paces["pop(1) + ack"] = scaled.pop()
    rates = {name: pace.wall for name, pace in paces.items()}
    return rates | {f"{name} by processor": pace.processor for name, pace in paces.items()}


def _said(count: int) -> str:
    return f"{count / 1e6:g} M"
