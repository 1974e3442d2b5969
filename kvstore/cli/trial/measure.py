"""Measure: the timed runs of benchmarks (put, pull, get, query), the bytes of an index, and the
verb `bench`; the repository's `bench/` has the full benchmarks.

The idea: one `Load` says how many messages of what size go to how many queues; every function takes
it and returns how much was done in how many seconds. Messages are made outside the measured time,
because a program has its messages already; everything the store does with them is inside, down to
the checkpoint that puts the last of them into the index. The bytes of a closed store are looked at
from outside, so that they owe nothing to the store's own bookkeeping.

Invariant: the same load gives the same messages in the same queues every time.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import click
import msgspec
import numpy as np
from numpy.typing import NDArray

import kvstore
from kvstore import Message, Store, TopicConfig
from kvstore.cli.terminal.options import LocalPath
from kvstore.cli.terminal.output import Output, Report, output_option
from kvstore.clock import SystemClock

_CHUNK: Final = 4096
"""Messages made at once, before the clock starts."""
_CREATED_AT_ONCE: Final = 10_000
_TAGS: Final = ("created", "paid", "packed", "shipped", "delivered", "returned", "closed", "lost")


class Load(msgspec.Struct, frozen=True):
    """The messages to put: `messages` bodies of `body` bytes, over topics x queues drawn at
    random.
    """

    messages: int
    body: int = 128
    topics: int = 8
    queues: int = 8
    batch: int = 32
    seed: int = 1
    tags: int = 8
    """How many different tags, 1 to 8, the messages have in turn."""


class Timed(msgspec.Struct, frozen=True):
    """The amount of work, and its time."""

    count: int
    seconds: float

    @property
    def rate(self) -> float:
        """The amount a second."""
        return self.count / self.seconds if self.seconds else 0.0


def topic_of(number: int) -> str:
    """The name of a load's topic."""
    return f"bench-{number}"


def key_of(number: int) -> str:
    """The key of a load's message."""
    return f"order-{number}"


def create_topics(store: Store, load: Load) -> None:
    """Makes the load's topics, in large atomic batches."""
    numbers = iter(range(load.topics))
    while names := [topic_of(number) for number in islice(numbers, _CREATED_AT_ONCE)]:
        store.create_topics([TopicConfig(name=name, queues=load.queues) for name in names])


def drawn_queues(load: Load) -> NDArray[np.int32]:
    """The queue of each message, counted over all topics."""
    rng = np.random.default_rng(load.seed)
    return rng.integers(0, load.topics * load.queues, load.messages, dtype=np.int32)


def messages(load: Load) -> Iterator[Message]:
    """The load's messages: one tag, one key and one property each; the store adds the unique id."""
    names = [topic_of(number) for number in range(load.topics)]
    body = np.random.default_rng(load.seed).bytes(load.body)
    # Not `tolist()` of all numbers: that would be 60 MB of the memory that is being measured.
    for number, place in enumerate(map(int, drawn_queues(load))):
        yield Message(
            topic=names[place // load.queues],
            body=body,
            queue=place % load.queues,
            tag=_TAGS[number % load.tags],
            keys=(key_of(number),),
            properties={"region": "eu"},
        )


def put_batches(store: Store, load: Load, report: Report | None = None) -> Timed:
    """Puts everything in batches, and checkpoints: written, flushed and indexed inside the time."""
    size = load.batch

    def put(chunk: list[Message]) -> None:
        for at in range(0, len(chunk), size):
            store.put_batch(chunk[at : at + size])

    return put_timed(store, load, put, max(_CHUNK // size, 1) * size, report)


def put_timed(
    store: Store, load: Load, put: Callable[[list[Message]], None], size: int = _CHUNK,
    report: Report | None = None,
) -> Timed:  # fmt: skip
    """Makes `size` messages at a time, and measures how long puts and checkpoints take."""
    clock = SystemClock()
    seconds = 0.0
    done = 0
    coming = messages(load)
    while chunk := list(islice(coming, size)):
        begin = clock.monotonic()
        put(chunk)
        seconds += clock.monotonic() - begin
        done += len(chunk)
        if report:
            report("putting", done, load.messages)
    begin = clock.monotonic()
    store.checkpoint()
    return Timed(done, seconds + clock.monotonic() - begin)


def pull_everything(store: Store, load: Load) -> Timed:
    """Pulls every queue to its end, bodies checked against their CRC."""
    clock = SystemClock()
    count = 0
    begin = clock.monotonic()
    for topic in map(topic_of, range(load.topics)):
        for queue in range(load.queues):
            offset = 0
            while (found := store.pull(topic, queue=queue, offset=offset)).messages:
                count += len(found.messages)
                offset = found.next_offset
    return _complete(Timed(count, clock.monotonic() - begin), load.messages)


def get_at_random(store: Store, load: Load, count: int) -> Timed:
    """Gets single messages by queue and offset, drawn at random."""
    clock = SystemClock()
    held = np.bincount(drawn_queues(load), minlength=load.topics * load.queues)
    rng = np.random.default_rng(load.seed + 1)
    places = rng.choice(np.flatnonzero(held), count)
    offsets = rng.integers(0, held[places])
    wanted = [
        (topic_of(place // load.queues), place % load.queues, offset)
        for place, offset in zip(places.tolist(), offsets.tolist(), strict=True)
    ]
    right = 0
    begin = clock.monotonic()
    for topic, queue, offset in wanted:
        right += store.get(topic, queue=queue, offset=offset).offset == offset
    return _complete(Timed(right, clock.monotonic() - begin), count)


def query_at_random(store: Store, load: Load, count: int) -> Timed:
    """Queries keys drawn at random; each is carried by exactly one message."""
    clock = SystemClock()
    places = drawn_queues(load)
    rng = np.random.default_rng(load.seed + 2)
    wanted = [
        (topic_of(int(places[number]) // load.queues), key_of(number))
        for number in rng.integers(0, load.messages, count).tolist()
    ]
    found = 0
    begin = clock.monotonic()
    for topic, key in wanted:
        found += len(store.query(topic, key=key, limit=8))
    return _complete(Timed(found, clock.monotonic() - begin), count)


def _complete(timed: Timed, expected: int) -> Timed:
    """Raises for wrong answers: a benchmark that got some has no figure."""
    if timed.count != expected:
        raise AssertionError(f"{timed.count:,} messages were found, not {expected:,}")
    return timed


ROCKETMQ_ENTRY: Final = 20
"""Bytes of one entry in RocketMQ's queue files."""
ROCKETMQ_PAGE: Final = 4096
"""Bytes of disk that a queue's first file takes at least."""
ROCKETMQ_FILE: Final = 6_000_000
"""Bytes of address space (and of file, as `ls` shows it) of one queue file: 300,000 entries."""


class IndexSizes(msgspec.Struct, frozen=True):
    """Bytes on disk of a closed store's index: table files of each family, and the whole folder."""

    families: dict[str, int]
    folder: int

    def of(self, *names: str) -> int:
        """Bytes of some families together."""
        return sum(self.families.get(name, 0) for name in names)


def index_sizes(store_folder: Path) -> IndexSizes:
    """Measures the index of a store that no process has open."""
    from rocksdict import AccessType, Options, Rdict

    folder = store_folder / "index"
    raw = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(folder), raw)}
    db = Rdict(str(folder), raw, column_families=families, access_type=AccessType.read_only())
    size = "rocksdb.live-sst-files-size"
    try:
        opened = {name: db.get_column_family(name) for name in families}
        found = {name: int(one.property_int_value(size) or 0) for name, one in opened.items()}
    finally:
        db.close()
    return IndexSizes(found, disk_bytes(folder))


def disk_bytes(folder: Path) -> int:
    """Bytes of disk that a folder's files take (`du`): blocks, not lengths."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def rocketmq_queue_files(messages_per_queue: Iterable[int]) -> tuple[int, int]:
    """Bytes of disk and of address space that RocketMQ's queue files take for these queues."""
    disk = space = 0
    for count in messages_per_queue:
        size = max(count, 1) * ROCKETMQ_ENTRY
        disk += -(-size // ROCKETMQ_PAGE) * ROCKETMQ_PAGE
        space += -(-size // ROCKETMQ_FILE) * ROCKETMQ_FILE
    return disk, space


@click.command()
@click.argument("folder", metavar="[DIR]", required=False,
                type=LocalPath(exists=True, file_okay=False))  # fmt: skip
@click.option("--messages", type=click.IntRange(min=1), default=200_000, show_default=True)
@click.option("--size", type=click.IntRange(min=0), default=128, show_default=True,
              help="Bytes of a body.")  # fmt: skip
@click.option("--topics", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--queues", type=click.IntRange(min=1), default=8, show_default=True)
@output_option
def bench(
    out: Output, folder: Path | None, messages: int, size: int, topics: int, queues: int
) -> None:
    """Measure put, pull, get and query in a new store inside DIR or the temporary folder.

    One process, one thread; every message has a tag, a key, a property and a unique id, and is
    indexed within the time of the put. The store is removed afterwards.
    """
    load = Load(messages=messages, body=size, topics=topics, queues=queues)
    place = Path(tempfile.mkdtemp(prefix="kvmq-bench-", dir=folder))
    try:
        found = _measure(out, place / "store", load)
        sizes = index_sizes(place / "store")
    finally:
        shutil.rmtree(place)
    queue_bytes = sizes.of("runs", "places") / messages
    key_bytes = sizes.of("message_keys") / (2 * messages)  # the key and the unique id
    if out.json:
        rates = {name: round(timed.rate) for name, timed in found.items()}
        out.document(
            {"load": load, "per_second": rates}
            | {"queue_index_bytes_per_message": queue_bytes, "key_index_bytes_per_key": key_bytes}
        )
        return
    rows = [(name, t.count, t.seconds, f"{t.rate:,.0f} /s") for name, t in found.items()]
    out.table(("what", "count", "seconds", "rate"), rows)
    out.text(f"index: {queue_bytes:.1f} bytes a message and {key_bytes:.1f} bytes a key")


def _measure(out: Output, folder: Path, load: Load) -> dict[str, Timed]:
    reads = min(load.messages, 20_000)
    with out.progress() as report, kvstore.open(folder) as store:
        create_topics(store, load)
        found = {f"put_batch({load.batch})": put_batches(store, load, report)}
        report("pulling", 0, 0)
        found["pull(32)"] = pull_everything(store, load)
        report("getting", 0, 0)
        found["get, random offset"] = get_at_random(store, load, reads)
        report("querying", 0, 0)
        found["query, random key"] = query_at_random(store, load, reads)
    return found
