"""Calls that put messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvstore.api.parts import Parts
from kvstore.engine.writer import Writer
from kvstore.message import Message, PutResult


class PutCalls(Parts):
    """Calls that put one message or a batch."""

    def put(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        queue: int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        flags: int = 0,
        message_id: str | None = None,
        born_at: int | None = None,
    ) -> PutResult:
        """Put one message; see `put_batch`, of which this is a batch of one, and `Message` for the
        fields.

        >>> store.put("orders", b"...", tag="paid", keys=["o-17"]).offset  # doctest: +SKIP
        0
        """
        return self._writer_or_fail().put(
            topic,
            body,
            queue,
            tag,
            keys,
            properties if properties is not None else {},
            message_group,
            flags,
            message_id,
            born_at,
        )

    def put_batch(self, messages: Sequence[Message]) -> list[PutResult]:
        """Put messages, in order; an error writes none of them (a crash may leave a leading part).

        Returns when they are written, or with `flush="sync"` when they are on the disk. Raises
        `TopicNotFound`, `MessageIllegal` and its kinds, `StoreBusy`, `DiskFull`, `FlushFailed`,
        `StoreReadOnly`, `StoreClosed`."""
        return self._writer_or_fail().put_batch(messages)

    def _writer_or_fail(self) -> Writer:
        try:
            return self._writer
        except AttributeError:
            self._log.check_writable()
            raise
