"""Two queues in SQLite as libraries have them: persist-queue and litequeue. One topic, no keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import litequeue
import persistqueue

from bench.peers.peer import Item, Peer


class PersistQueue(Peer):
    """Its queue with acks, which pickles; a put is a transaction, and acked rows stay."""

    def __init__(self, folder: Path, sync: bool) -> None:
        if sync:
            raise NotImplementedError
        super().__init__(folder, sync)
        self._queue = persistqueue.SQLiteAckQueue(
            str(folder), auto_commit=True, multithreading=True, auto_resume=False
        )

    def put_batch(self, batch: list[Item]) -> list[Any]:
        """One after the other: there is no call for many."""
        return [self._queue.put(tuple(item)) for item in batch]

    def pop(self, limit: int) -> list[Any]:
        """One after the other."""
        count = min(limit, self._queue.size)
        return [self._queue.get(raw=True) for _ in range(count)]

    def ack(self, handles: list[Any]) -> None:
        """One after the other."""
        for handle in handles:
            self._queue.ack(id=handle["pqid"])

    def close(self) -> None:
        """Closes the file."""
        self._queue.close()


class LiteQueue(Peer):
    """Texts; a put is a transaction."""

    def __init__(self, folder: Path, sync: bool) -> None:
        if sync:
            raise NotImplementedError
        super().__init__(folder, sync)
        self._queue = litequeue.LiteQueue(str(folder / "queue.sqlite"))

    def put_batch(self, batch: list[Item]) -> list[Any]:
        """One after the other: there is no call for many."""
        return [
            self._queue.put(json.dumps((*i[:2], i.body.hex(), *i[3:]))).message_id for i in batch
        ]

    def get(self, place: Any) -> bytes:
        """By its id."""
        return bytes.fromhex(json.loads(self._queue.get(place).data)[2])

    def pop(self, limit: int) -> list[Any]:
        """One after the other."""
        found = (self._queue.pop() for _ in range(limit))
        return [m.message_id for m in found if m is not None and json.loads(m.data)]

    def ack(self, handles: list[Any]) -> None:
        """One after the other."""
        for handle in handles:
            self._queue.done(handle)

    def another(self) -> Peer:
        """A connection of its own."""
        return LiteQueue(self.folder, self.sync)

    def close(self) -> None:
        """Closes the file."""
        self._queue.close()
