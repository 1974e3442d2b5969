"""Moving messages between tiers as a worker does, and all that a reader can ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import kvstore
from kvstore import ArchiveAccess, Store, StoreConfig, StoredMessage, StoreError
from kvstore.engine.segment_handover import Arriving, Queue
from kvstore.meta.topic import TopicInfo
from tests.support.clock import VirtualClock
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.records import RecordBatch
from tiering.archive.manifest import ArchivedTopic
from tiering.archive.writer import ArchiveOrigin, ArchiveSettings, ArchiveWriter
from tiering.catalog.catalog import ArchiveRow, encode_row, row_of
from tiering.catalog.tiers import Tiers
from tiering.places.place import open_place

BLOCKS: Final = ArchiveSettings(block_bytes=4096)
PLACE: Final = "archive"
SEGMENT: Final = 64 << 10
SOON_MS: Final = 3000
"""Some messages come within this time."""

Records = dict[Queue, list[bytes]]
ClassOf = Callable[[TopicInfo], str | None]


@dataclasses.dataclass
class Made:
    """Archives that are where their rows say, and not in the catalog yet."""

    segments: list[int]
    arriving: list[Arriving]
    unkept: set[Queue]
    rows: list[ArchiveRow]


class Limits:
    """The limits for archives in the stores of these tests, unless a test sets others."""

    access = ArchiveAccess()


def config(clock: VirtualClock | None = None, **changed: Any) -> StoreConfig:
    changed.setdefault("archives", Limits.access)
    return StoreConfig(
        segment_size=SEGMENT,
        clock=clock or VirtualClock(),
        checkpoint_interval=1e9,
        retention_interval=1e9,
        **changed,
    )


def filled(path: Path, clock: VirtualClock, segments: int = 4, each: int = 40) -> Store:
    """A store with two topics of two queues, in some segments."""
    store = kvstore.open(path, config(clock))
    for name in ("orders", "visits"):
        store.create_topic(name, queues=2)
    put_segments(store, clock, segments, each)
    return store


def put_segments(store: Store, clock: VirtualClock, segments: int, each: int) -> None:
    first = store.stats().end_position // SEGMENT * each
    for n in range(first, first + segments * each):
        topic = ("orders", "visits")[n % 3 == 0]
        store.put(
            topic,
            b"%d " % n * (n % 50),
            queue=n % 2,
            tag="ab"[n % 2],
            keys=[f"k-{n % 17}", "all"],
            properties={"n": str(n)},
            # Not by chance: else a filter passes a key that is nowhere now and then.
            message_id=f"{n:032X}",
        )
        clock.advance(0.5)
        if n % each == each - 1:
            store.seal()


def by_topic(info: TopicInfo) -> str | None:
    return info.name


def one_class(_: TopicInfo) -> str | None:
    return "all"


def tiers(store: Store) -> Tiers:
    found = store.handover.archived()
    assert isinstance(found, Tiers)
    return found


def sealed(store: Store) -> list[int]:
    return [segment.number for segment in store.handover.sealed()]


def make(store: Store, segments: Iterable[int], class_of: ClassOf = one_class) -> Made:
    """Write the archives of segments: one for each class; None: not kept."""
    numbers = sorted(segments)
    side = store.handover
    paths = {segment.number: segment.path for segment in side.sealed()}
    classes: dict[str, Records] = {}
    unkept: set[Queue] = set()
    for number in numbers:
        data = paths[number].read_bytes()
        for entries in side.entries(number):
            rows = zip(
                entries.topics.tolist(),
                entries.queues.tolist(),
                (entries.positions % side.segment_size).tolist(),
                entries.sizes.tolist(),
                strict=True,
            )
            for topic, queue, at, size in rows:
                info = side.topic(topic)
                assert info is not None
                name = class_of(info)
                if name is None:
                    unkept.add((topic, queue))
                else:
                    mine = classes.setdefault(name, {})
                    mine.setdefault((topic, queue), []).append(data[at : at + size])
    stretches = tuple((n * side.segment_size, (n + 1) * side.segment_size) for n in numbers)
    made = [write(store, name, records, stretches) for name, records in sorted(classes.items())]
    return Made(numbers, [a for a, _ in made], unkept, [r for _, r in made])


def write(
    store: Store,
    name: str,
    records: Records,
    stretches: tuple[tuple[int, int], ...],
    generation: int = 0,
) -> tuple[Arriving, ArchiveRow]:
    """One archive, in its place."""
    side = store.handover
    sink = BytesIO()
    origin = ArchiveOrigin(
        store_id=side.store_id.hex(),
        segments=stretches,
        retention_class=name,
        generation=generation,
    )
    writer = ArchiveWriter(sink, BLOCKS, origin)
    infos = {topic: side.topic(topic) for topic, _ in records}
    for topic, queue in sorted(records, key=lambda key: (_name(infos[key[0]]), key[1])):
        writer.add(_archived(infos[topic]), queue, RecordBatch.of_records(records[topic, queue]))
    manifest = writer.finish()
    number = side.take_number()
    key = f"{name}-{number}.kvma"
    place = open_place(side.folder / PLACE)
    place.check(create=True)
    place.put(key, sink.getvalue())
    row = row_of(
        manifest, number=number, place=PLACE, key=key, tier="warm", size=len(sink.getvalue()), crc=0
    )
    archive = Archive.open(place.source(key))
    held = [
        (archive.directory.topic_id(n), q, *first_of(archive, blocks))
        for n, q, blocks in archive.directory.queues()
    ]
    return Arriving(number, row.first_position, encode_row(row), held), row


def first_of(archive: Archive, blocks: range) -> tuple[int, int]:
    row = archive.rows().row(blocks[0])
    return row.first_offset, row.least_stored_at


def _name(info: TopicInfo | None) -> str:
    assert info is not None
    return info.name


def _archived(info: TopicInfo | None) -> ArchivedTopic:
    assert info is not None
    return ArchivedTopic(
        name=info.name,
        id=info.id,
        queues=info.write_queues,
        since=info.since,
        key_index=info.key_index,
        key_history=info.key_history,
    )


def hand_over(store: Store, segments: Iterable[int], class_of: ClassOf = one_class) -> Made:
    """Have segments in archives."""
    made = make(store, segments, class_of)
    if made.segments:
        store.handover.hand_over(made.segments, made.arriving, made.unkept)
    return made


def merge(
    store: Store,
    numbers: Iterable[int],
    keep: Callable[[Queue, int], bool] = lambda queue, offset: True,
) -> ArchiveRow:
    """Have one archive in the place of several, with the offsets that `keep` says yes to."""
    old = sorted(numbers)
    found = tiers(store)
    rows = [found.row(number) for number in old]
    records: dict[Queue, dict[int, bytes]] = {}
    for number in old:
        archive = found.archive(number)
        for n, queue, blocks in archive.directory.queues():
            mine = records.setdefault((archive.directory.topic_id(n), queue), {})
            for block in map(archive.read_block, blocks):
                mine.update(zip(block.offsets.tolist(), block.records(), strict=True))
    kept = {
        queue: [r for o, r in sorted(mine.items()) if keep(queue, o)]
        for queue, mine in records.items()
    }
    kept = {queue: mine for queue, mine in kept.items() if mine}
    stretches = tuple(s for row in rows for s in row.segments)
    arriving, row = write(store, "merged", kept, stretches, 1)
    gone: list[tuple[bytes, bytes | None]] = [(r.catalog_key, None) for r in rows]
    store.handover.swap(old, [arriving], queues=records, rows=gone)
    for r in rows:
        open_place(store.handover.folder / PLACE).delete(r.key)
    return row


def archived(
    path: Path,
    clock: VirtualClock,
    handed: Iterable[Iterable[int]],
    *,
    segments: int,
    each: int = 40,
) -> Store:
    """A store opened anew, with an archive of each of these sets of segments; none was read yet."""
    with filled(path, clock, segments, each) as store:
        for numbers in handed:
            hand_over(store, numbers)
    return kvstore.open(path, config(clock))


def drop(store: Store, number: int) -> None:
    """Have an archive expire."""
    row = tiers(store).row(number)
    store.handover.swap([number], rows=[(row.catalog_key, None)])
    path_of(store, row).unlink()


def path_of(store: Store, row: ArchiveRow) -> Path:
    return store.path / row.place / row.key


# -- what a reader can ask


def asked(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The result of a call, or its error's type and facts."""
    try:
        return call(*args, **named)
    except StoreError as e:
        facts = {k: v for k, v in vars(e).items() if k != "position"}
        return type(e), tuple(sorted(facts.items()))


def answers(store: Store) -> dict[Any, Any]:
    """Everything that a store says of its messages, in every way there is."""
    out: dict[Any, Any] = {}
    keys: set[tuple[str, str]] = set()
    for topic in store.topics():
        for queue in range(topic.read_queues):
            messages = _by_offset(store, topic.name, queue, out)
            _by_time(store, topic.name, queue, messages, out)
            for m in messages:
                out["at", m.position] = asked(store.read_at, m.position)
                # The error's facts also tell where the log begins, which may differ.
                out["not at", m.position] = asked(store.read_at, m.position + 1)[0]
                out["find", m.message_id] = asked(store.find, m.message_id)
                out["find", m.position_id] = asked(store.find, m.position_id)
                keys |= {(topic.name, key) for key in m.keys}
    for name, key in keys:
        out[name, "key", key] = store.query(name, key, limit=1000)
    return out


def _by_offset(store: Store, name: str, queue: int, out: dict[Any, Any]) -> list[StoredMessage]:
    low, high = out[name, queue, "bounds"] = store.bounds(name, queue)
    for limit, max_bytes in ((3, None), (1000, None), (20, 1500)):
        at, pulled = low, []
        while at < high:
            found = asked(store.pull, name, queue, at, limit, max_bytes=max_bytes)
            pulled.append(found)
            if isinstance(found, tuple):
                break
            assert found.next_offset > at
            at = found.next_offset
        out[name, queue, "pull", limit] = pulled
    out[name, queue, "filtered"] = asked(store.pull, name, queue, low, 50, filter="a")
    for offset in range(low - 1, high + 1):
        out[name, queue, offset] = asked(store.get, name, queue, offset)
    return [m for o in range(low, high) if isinstance(m := out[name, queue, o], StoredMessage)]


def _by_time(
    store: Store, name: str, queue: int, messages: list[StoredMessage], out: dict[Any, Any]
) -> None:
    for time in {m.stored_at + more for m in messages[::5] for more in (-1, 0, 1)}:
        for upper in (False, True):
            out[name, queue, "time", time, upper] = asked(
                store.offset_at, name, queue, time, upper=upper
            )
        out[name, "from", time] = store.query(name, "all", begin=time, limit=5)
        out[name, "to", time] = store.query(name, "all", end=time, limit=5)
        out[name, "between", time] = store.query(name, "all", begin=time, end=time + SOON_MS)
