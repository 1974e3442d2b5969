"""The transaction of a `with` block: several messages, of several topics, that become visible
together, or not at all.

The idea: the block collects messages. `prepare` makes them durable as prepared messages, before
another system commits its part; the end of the block commits them. A block that never prepared
does both at its end. An exception in the block rolls back.

Invariants: no message of the block is visible before the end of the block; a block ends once, and
to end it otherwise is refused; an exception in the block is what its caller sees.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Protocol, Self

from kvstore.errors import CallerError, MessageIllegal, StoreError, TransactionEnded, shown
from kvstore.message import Message, PutResult
from kvstore.timing.prepared_message import SET_MAX
from kvstore.timing.transactions import End


class PreparesAndEnds(Protocol):
    """The calls of a store, or of a namespace of one, that a transaction makes."""

    def prepare_batch(
        self, messages: Sequence[Message], *, group: str, set_id: str | None
    ) -> list[PutResult]:
        """See `kvstore.Store.prepare_batch`."""
        ...

    def commit_batch(self, prepared: Sequence[PutResult]) -> list[PutResult]:
        """See `kvstore.Store.commit_batch`."""
        ...

    def rollback_batch(self, prepared: Sequence[PutResult]) -> None:
        """See `kvstore.Store.rollback_batch`."""
        ...


class Transaction:
    """A transaction, see the module and `Store.transaction`. `results` says where the messages
    went, once it is committed.
    """

    def __init__(self, calls: PreparesAndEnds, group: str) -> None:
        self._calls = calls
        self._group = group
        self._messages: list[Message] = []
        self._prepared: list[PutResult] | None = None
        self._ended: End | None = None
        self.results: list[PutResult] = []

    def put(self, topic: str, body: bytes | bytearray | memoryview, **fields: Any) -> None:
        """Adds a message; `fields` are those of `Message`. Errors of the message come when it is
        prepared.
        """
        self.put_batch([Message(topic, body, **fields)])

    def put_batch(self, messages: Sequence[Message]) -> None:
        """Adds messages."""
        if self._prepared is not None or self._ended is not None:
            raise CallerError(
                "the transaction is prepared, or has ended; it takes no more messages"
            )
        if len(self._messages) + len(messages) > SET_MAX:
            raise CallerError(f"a transaction has up to {SET_MAX} messages; use several")
        for message in messages:
            if not isinstance(message, Message):
                raise MessageIllegal(f"{shown(message)} is no Message")
        self._messages += messages

    def prepare(self) -> list[PutResult]:
        """Makes the messages durable, as prepared ones: from here on the producer group's checkers
        are asked if this process doesn't end the transaction. The first result's id is that of the
        transaction.
        """
        self._refuse_after("rollback")
        if self._prepared is None and self._messages:
            messages, set_id = self._messages, None
            if len(messages) > 1:
                set_id = messages[0].message_id or secrets.token_hex(16).upper()
                messages = [messages[0].__replace__(message_id=set_id), *messages[1:]]
            self._prepared = self._calls.prepare_batch(messages, group=self._group, set_id=set_id)
        return self._prepared or []

    def commit(self) -> list[PutResult]:
        """Makes the messages visible, all at once; done by the end of the block. `TransactionEnded`
        if it was rolled back.
        """
        prepared = self.prepare()
        if self._ended is None:
            self.results = self._calls.commit_batch(prepared[:1]) if prepared else []
            self._ended = "commit"
        return self.results

    def rollback(self) -> None:
        """Drops the messages; done when the block ends with an exception. `TransactionEnded` if it
        was committed.
        """
        self._refuse_after("commit")
        if self._prepared and self._ended is None:
            self._calls.rollback_batch(self._prepared[:1])
        self._ended = "rollback"

    def _refuse_after(self, end: End) -> None:
        if self._ended == end:
            how = "committed" if end == "commit" else "rolled back"
            raise TransactionEnded(f"the transaction was {how} already", end == "commit")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._ended is not None:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except StoreError as e:
            # The block's own exception says why it ended.
            error.add_note(f"its transaction waits on, since it could not be rolled back: {e}")
