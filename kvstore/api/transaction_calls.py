"""The calls of a store on transactions: messages that are prepared, and committed or rolled back.

The idea: as in `calls`, of which this is a part: a call hands the work to `timing`. Those whose
names end with `_in` are for a namespace: they see the messages of its topics alone.

Invariant: a call that raised ended no transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvstore.engine.engine import Engine
from kvstore.errors import MessageIllegal, TransactionEnded, shown
from kvstore.message import Message, PutResult
from kvstore.meta.namespaces import belongs_to
from kvstore.record.put.explain import as_batch
from kvstore.record.validate import check_group, listed
from kvstore.timing.checks import Ask, Checker
from kvstore.timing.pending_messages import Owns
from kvstore.timing.prepared_list import Ended, Handle, result_of
from kvstore.timing.prepared_message import PreparedMessage, PreparedPage
from kvstore.timing.transaction import Transaction
from kvstore.timing.transactions import End


class TransactionCalls:
    """The calls, see the module. `engine` has the parts of the open store."""

    _engine: Engine

    def prepare(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        group: str,
        immunity: float | None = None,
        queue: int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        flags: int = 0,
        message_id: str | None = None,
        born_at: int | None = None,
        expires_at: int | None = None,
    ) -> PutResult:
        """Prepares one message; see `prepare_batch`, of which this is a batch of one, and `Message`
        for the fields.

        >>> prepared = store.prepare("orders", b"...", group="pay")  # doctest: +SKIP
        >>> store.commit(prepared).offset  # doctest: +SKIP
        0
        """
        own = {} if properties is None else properties
        message = Message(
            topic, body, queue, tag, keys, own, message_group, flags, message_id, born_at,
            expires_at=expires_at,
        )  # fmt: skip
        return self.prepare_batch((message,), group=group, immunity=immunity)[0]

    def prepare_batch(
        self,
        messages: Sequence[Message],
        *,
        group: str,
        immunity: float | None = None,
        set_id: str | None = None,
    ) -> list[PutResult]:
        """Prepares messages, each with a transaction of its own: they are durable as after a put,
        and in no queue, pop or query before their commit. `group` is the producer group whose
        checkers are asked (`on_check`) if nobody ends the transaction within `immunity` seconds
        (None: `StoreConfig.transaction_immunity`). The results have the ids that `commit` and
        `rollback` take; they have no offset yet.

        With `set_id`, which must be the id of the first message, all end together; `transaction` is
        the easier way. Raises what `put_batch` does, and `MessageIllegal` for a delay.
        """
        found = as_batch(messages)
        if set_id is not None and (not found or found[0].message_id != set_id):
            raise MessageIllegal(f"set_id is {shown(set_id)}; it must be the first message's id")
        return self._engine.transactions.prepare(found, group, immunity, set_id=set_id)

    def commit(self, prepared: Handle) -> PutResult:
        """Commits the transaction of a prepared message, given the result of its put or its id: the
        message is in its queue from now on, and with it the others of its set. Returns where it
        went. To commit twice changes nothing. `TransactionEnded` if it was rolled back or given up,
        `MessageNotFound` for an unknown id.
        """
        return result_of(prepared, self.commit_batch([prepared]))

    def commit_batch(self, prepared: Sequence[Handle]) -> list[PutResult]:
        """Commits many transactions, all or none, by one put; see `commit`. Returns where their
        messages went.
        """
        return self._end(prepared, "commit", None)

    def rollback(self, prepared: Handle) -> None:
        """Rolls the transaction of a prepared message back: none of its messages will be in a
        queue. To roll back twice changes nothing. `TransactionEnded` if it was committed,
        `MessageNotFound` for an unknown id.
        """
        self.rollback_batch([prepared])

    def rollback_batch(self, prepared: Sequence[Handle]) -> None:
        """Rolls many transactions back, all or none, by one put; see `rollback`."""
        self._end(prepared, "rollback", None)

    def commit_in(self, namespace: str, prepared: Sequence[Handle]) -> list[PutResult]:
        """As `commit_batch`, of messages to the topics of a namespace."""
        return self._end(prepared, "commit", belongs_to(namespace))

    def rollback_in(self, namespace: str, prepared: Sequence[Handle]) -> None:
        """As `rollback_batch`, of messages to the topics of a namespace."""
        self._end(prepared, "rollback", belongs_to(namespace))

    def _end(self, prepared: Sequence[Handle], how: End, owns: Owns | None) -> list[PutResult]:
        self._engine.log.check_writable()
        return self._engine.transactions.end(_handles(prepared), how, owns)

    def transaction(self, *, group: str) -> Transaction:
        """A transaction as a `with` block: its messages become visible together at its end, or, if
        it ends with an exception, not at all. See `Transaction`.

        >>> with store.transaction(group="pay") as t:  # doctest: +SKIP
        ...     t.put("orders", b"...")
        ...     t.put("audit", b"...")
        """
        self._engine.log.check_writable()
        check_group(group)
        return Transaction(self, group)

    def on_check(self, group: str, checker: Ask) -> Checker:
        """Lets `checker` answer for the transactions of a producer group that nobody ended in time:
        it is given the message, and says "commit", "rollback" or "unknown". It is called in a
        thread of its own; several checkers of a group share the questions. `close` of the result
        ends it.

        >>> checker = store.on_check("pay", lambda message: "commit")  # doctest: +SKIP
        """
        return self._on_check(group, checker, None)

    def _on_check(self, group: str, checker: Ask, owns: Owns | None) -> Checker:
        self._engine.log.check_writable()
        found = self._engine.checks.on_check(group, checker, owns)
        # Without the checkers that were closed: a program may register one again and again.
        threads = self._engine.threads
        threads[:] = [one for one in threads if not one.is_stopping] + [found.thread]
        return found

    def transactions(
        self,
        group: str | None = None,
        *,
        limit: int = 64,
        after: tuple[int, int] | None = None,
    ) -> PreparedPage:
        """Prepared messages that wait, of a producer group or of all, the next to be asked about
        first. `after` is the `next` of the page before. Also of a store that is open read-only.
        `MessageIllegal` for a group that can't be one.
        """
        self._engine.reader.check_open()
        return self._engine.prepared_list.page(group, limit, after, None)

    def transactions_in(
        self,
        namespace: str,
        group: str | None = None,
        *,
        limit: int = 64,
        after: tuple[int, int] | None = None,
    ) -> PreparedPage:
        """As `transactions`, of messages to the topics of a namespace."""
        self._engine.reader.check_open()
        return self._engine.prepared_list.page(group, limit, after, belongs_to(namespace))

    def prepared(self, message_id: str) -> PreparedMessage:
        """The prepared message with an id (of a set, the first one); `MessageNotFound`, and
        `TransactionEnded` if it does not wait any more.
        """
        return self._prepared(message_id, None)

    def prepared_in(self, namespace: str, message_id: str) -> PreparedMessage:
        """As `prepared`, of messages to the topics of a namespace."""
        return self._prepared(message_id, belongs_to(namespace))

    def _prepared(self, prepared: Handle, owns: Owns | None) -> PreparedMessage:
        found = self._engine.prepared_list.state(prepared, owns)
        if isinstance(found, Ended):
            how = "committed" if found.is_committed else "rolled back, or given up"
            raise TransactionEnded(
                f"the transaction of {shown(found.message.message_id)} was {how}",
                found.is_committed,
            )
        return found


def _handles(prepared: Sequence[Handle]) -> list[Handle]:
    found = listed("prepared", prepared)
    for one in found:
        if not isinstance(one, str | PutResult):
            raise MessageIllegal(
                f"{shown(one)} is no prepared message; give the result of its put, or its id"
            )
    return found
