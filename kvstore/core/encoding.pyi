"""Messages become records; see encoding.pyx."""

from collections.abc import Callable, Sequence
from typing import Protocol, final

from kvstore.core.put_values import Message, PutResult, PutStatus
from kvstore.core.unique_ids import UniqueIds

@final
class PutRoute:
    """The facts of a topic that a put needs. It also counts the turns of messages that name no
    queue.
    """

    base: int
    """Topic id << 32: a queue's key in memory is `base + queue`."""
    write_queues: int
    overhead: int
    """A record's bytes without body and properties."""
    key_level: int
    """The keys that go into the key index: 0 none, 1 the unique id, 2 all keys as well."""
    holds_pending: bool
    kind: str
    takes_delays: bool
    dedup_window: int
    """Milliseconds; -1: the topic takes no dedup ids."""

    def __init__(
        self,
        base: int,
        write_queues: int,
        host_size: int,
        magic: int,
        wire: bytes,
        key_level: int,
        compress_above: int | None,
        compression: str | None,
        holds_pending: bool = False,
        kind: str = "normal",
        takes_delays: bool = True,
        dedup_window: int | None = None,
    ) -> None:
        """`magic` and `wire` (the topic's length and name) are the record's, of which a packed host
        takes `host_size` bytes: 8 or 20, else ValueError, as for no queues. Bodies above
        `compress_above` bytes are compressed with the codec `compression`; None: as in all topics.
        Messages that wait are put by the route that `holds_pending`, and callers put none there.
        The kind "fifo" takes messages that have a group or a queue, and no delayed ones; "delay"
        only delayed ones, "transaction" only prepared ones. No kind takes delayed ones without
        `takes_delays`.
        Dedup ids are remembered for `dedup_window` ms; None: the topic takes none.
        """

class _Routes(Protocol):
    def find(self, name: str) -> PutRoute | None: ...
    def make_missing(
        self,
        names: Sequence[str],
        queues: Sequence[int | None],
        sizes: Sequence[int],
        record_max: int,
    ) -> list[PutRoute]: ...
    def make_pending(self, name: str) -> PutRoute: ...

@final
class Encoder:
    """Makes records of messages, for one store."""

    def __init__(
        self,
        routes: _Routes,
        ids: UniqueIds,
        compress: Callable[[bytes, str], tuple[bytes, int]],
        host: bytes,
        *,
        reserved: frozenset[str],
        transient: bytes,
        max_body: int,
        max_record: int,
        max_properties: int,
        compress_above: int | None,
        compression: str,
        property_crc: bool,
        any_time: bool,
        cut_ms: int,
    ) -> None:
        """`routes` is a dict of topic and route whose other methods make those that it has not;
        `compress` gives a compressed body and its system flags. `host` is packed, 8 or 20 bytes;
        `reserved` are names that properties may not have, and those that begin with `transient`
        are left out. Sizes are bytes. With `any_time` a time need not be from 2000 to 2100. The
        clock's time may be `cut_ms` ahead of the time of a put.
        """

    def prepare(
        self,
        messages: Sequence[Message],
        now_ms: int,
        held: Sequence[tuple[bytes, int]] | None = None,
        any_kind: bool = False,
    ) -> PreparedBatch:
        """The records of some messages. With `held` they are prepared messages of transactions: it
        has for each more properties, as they stand in a record, and a time in ms. With `any_kind`
        each topic takes them, whatever its kind. Raises
        ValueError, TypeError, AttributeError or LookupError if one of them is at fault, and the
        errors of `routes`.
        """

@final
class PreparedBatch:
    """The records of a put, whole but for their places, which `Tail.add` gives."""

    count: int
    deduped: int
    """How many of the messages have dedup ids."""
    records: bytes
    stored_at: int
    first_due: int
    """The first of the due times of messages that wait, in ms; 0: none waits."""

    def __len__(self) -> int:
        """The number of messages."""

    @property
    def queue_keys(self) -> list[int]:
        """Each message's queue: topic id << 32 | queue."""

    def results(self, status: PutStatus) -> list[PutResult]:
        """The results, after `Tail.add`."""

    def position(self, i: int) -> int:
        """Where message `i` stands in the log, after `Tail.add`. Raises IndexError."""

    def forget_bodies(self) -> None:
        """Drops the records and all that they were made of, but for what results need."""
