"""kvmq itself: one store, a group for popping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kvstore
from bench.peers.peer import Item, Peer
from kvstore import Message, StoreConfig, TopicConfig

_NAMES = [f"topic-{n}" for n in range(5000)]


class Kvmq(Peer):
    """Locks are persisted; the index is written to the last entry before the clock stops."""

    def __init__(self, folder: Path, sync: bool) -> None:
        super().__init__(folder, sync)
        config = StoreConfig(flush="sync" if sync else "async")
        self._store = kvstore.open(folder / "store", config=config)
        self._queues = 0

    def create(self, topics: int, queues: int) -> None:
        """Topics, and the group."""
        self._queues = queues
        self._store.create_topics([TopicConfig(name=n, queues=queues) for n in _NAMES[:topics]])
        self._store.create_group("group")

    def put_batch(self, batch: list[Item]) -> list[Any]:
        """One call."""
        return self._store.put_batch(
            [
                Message(
                    topic=_NAMES[i.topic],
                    body=i.body,
                    queue=i.queue,
                    tag=i.tag,
                    keys=(i.key,),
                    properties={"region": i.region},
                )
                for i in batch
            ]
        )

    def put(self, item: Item) -> Any:
        """The call for one."""
        return self._store.put(
            _NAMES[item.topic],
            item.body,
            queue=item.queue,
            tag=item.tag,
            keys=(item.key,),
            properties={"region": item.region},
        )

    def columns_of(self, rows: list[Item]) -> Any:
        """An Arrow record batch."""
        # Here: where it is not asked for, its library is not part of the memory that is measured.
        import pyarrow as pa

        pairs = pa.map_(pa.string(), pa.string())
        return pa.record_batch(
            {
                "body": pa.array([i.body for i in rows], pa.binary()),
                "queue": pa.array([i.queue for i in rows], pa.int32()),
                "tag": pa.array([i.tag for i in rows], pa.string()),
                "keys": pa.array([[i.key] for i in rows], pa.list_(pa.string())),
                "properties": pa.array([[("region", i.region)] for i in rows], pairs),
            }
        )

    def put_columns(self, columns: Any) -> int:
        """One call."""
        return self._store.put_columns(_NAMES[0], columns).count

    def pull(self, topic: int, queue: int, after: Any) -> tuple[list[tuple[Any, ...]], Any]:
        """The cursor is an offset."""
        found = self._store.pull(_NAMES[topic], queue, after or 0, 32)
        return [
            (m.body, m.tag, m.keys, m.properties, m.offset, m.stored_at) for m in found.messages
        ], found.next_offset

    def get(self, place: Any) -> bytes:
        """By topic, queue and offset."""
        return self._store.get(place.topic, place.queue, place.offset).body

    def query(self, topic: int, key: str) -> int:
        """In the index of keys."""
        return sum(m.body is not None for m in self._store.query(_NAMES[topic], key))

    def pop(self, limit: int) -> list[Any]:
        """Receipts."""
        return [p.receipt for p in self._store.pop("group", _NAMES[0], limit) if p.message.body]

    def ack(self, handles: list[Any]) -> None:
        """Of a batch, or of one."""
        if len(handles) == 1:
            self._store.ack(handles[0])
        else:
            self._store.ack_batch(handles)

    def put_delayed(self, item: Item, due: int) -> Any:
        """An id."""
        return self._store.put(
            _NAMES[item.topic],
            item.body,
            queue=item.queue,
            tag=item.tag,
            keys=(item.key,),
            properties={"region": item.region},
            deliver_at=due,
        ).message_id

    def delivered(self) -> int:
        """By the ends of the queues."""
        bounds = self._store.bounds
        return sum(bounds(_NAMES[0], queue).next_offset for queue in range(self._queues))

    def cancel(self, handle: Any) -> None:
        """By id; what is cancelled when it returns."""
        assert self._store.cancel(handle)

    def transact(self, item: Item) -> None:
        """Two calls."""
        prepared = self._store.prepare(
            _NAMES[item.topic],
            item.body,
            group="bench",
            queue=item.queue,
            tag=item.tag,
            keys=(item.key,),
            properties={"region": item.region},
        )
        self._store.commit(prepared)

    def settle(self) -> None:
        """Index all."""
        self._store.flush()
        self._store.checkpoint()

    def close(self) -> None:
        """Closes the store."""
        self._store.close()
