"""Answers: RocketMQ's status codes, and which of them each error of the store is.

The idea: a service raises a `Refusal`, or lets the store's error pass; one function makes the
status of either, so a client is told the same code wherever it went wrong. A response of several
entries has a status for each, and one at its top that sums them up.

Invariants: an unknown error is INTERNAL_SERVER_ERROR, and only its kind goes to the client; the log
has the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from kvstore.errors import (
    CallerError,
    DelayEnded,
    DiskFull,
    FilterIllegal,
    FlushFailed,
    GroupNotFound,
    InFlight,
    LimitExceeded,
    MessageIllegal,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    NotAuthenticated,
    OffsetNotFound,
    PropertiesTooLarge,
    QueueNotFound,
    ReceiptExpired,
    ReceiptIllegal,
    StoreError,
    TopicNotFound,
    TransactionEnded,
)
from kvstore.process.background import traced
from kvstore.serve.grpc.protocol.wire import Wire, code, message_class

OK: Final = code("OK")
_MIXED: Final = code("MULTIPLE_RESULTS")
_EACH: Final = "the entries have a status each"
_log = logging.getLogger("kvmq")

_CODES: Final[tuple[tuple[type[StoreError], str], ...]] = (
    # The first kind that fits counts.
    (NotAuthenticated, "UNAUTHORIZED"),
    (NotAllowed, "FORBIDDEN"),
    (LimitExceeded, "TOO_MANY_REQUESTS"),
    (TopicNotFound, "TOPIC_NOT_FOUND"),
    (GroupNotFound, "CONSUMER_GROUP_NOT_FOUND"),
    (FilterIllegal, "ILLEGAL_FILTER_EXPRESSION"),
    (PropertiesTooLarge, "MESSAGE_PROPERTIES_TOO_LARGE"),
    (MessageTooLarge, "MESSAGE_BODY_TOO_LARGE"),
    (MessageIllegal, "BAD_REQUEST"),
    (ReceiptIllegal, "INVALID_RECEIPT_HANDLE"),
    (ReceiptExpired, "INVALID_RECEIPT_HANDLE"),
    (TransactionEnded, "INVALID_TRANSACTION_ID"),
    (DelayEnded, "MESSAGE_NOT_FOUND"),
    (MessageNotFound, "MESSAGE_NOT_FOUND"),
    (OffsetNotFound, "ILLEGAL_OFFSET"),
    (QueueNotFound, "BAD_REQUEST"),
    (InFlight, "PRECONDITION_FAILED"),
    (FlushFailed, "MASTER_PERSISTENCE_TIMEOUT"),
    # Clients try these again, which they don't with TOO_MANY_REQUESTS.
    (DiskFull, "INTERNAL_SERVER_ERROR"),
    (CallerError, "BAD_REQUEST"),
)


class Refusal(CallerError):
    """A request, or an entry in a request, is refused with a code of the protocol."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name

    @property
    def code(self) -> int:
        """The number of the code."""
        return code(self.name)


def status_of(error: BaseException) -> tuple[int, str]:
    """The code and text that a client is told of an error."""
    if isinstance(error, Refusal):
        return error.code, str(error)
    if isinstance(error, StoreError):
        for kind, name in _CODES:
            if isinstance(error, kind):
                return code(name), str(error)
        return code("INTERNAL_SERVER_ERROR"), str(error)
    _log.error("a request of a RocketMQ client failed: %s", traced(error))
    return code("INTERNAL_SERVER_ERROR"), f"the server failed ({type(error).__name__}); see its log"


def set_status(status: Wire, number: int = OK, text: str = "OK") -> None:
    """Fills a status."""
    status.code = number
    status.message = text


def set_error(status: Wire, error: BaseException) -> None:
    """Fills a status from an error."""
    set_status(status, *status_of(error))


def summed_up(statuses: Iterable[tuple[int, str]]) -> tuple[int, str]:
    """The status at the top: that of all entries if they agree, else MULTIPLE_RESULTS."""
    found = dict(statuses)
    return next(iter(found.items())) if len(found) == 1 else (_MIXED, _EACH)


def refused(response: str, error: BaseException) -> Any:
    """A response that says no more than an error."""
    answer = message_class(response)()
    set_error(answer.status, error)
    return answer


def ok(response: str) -> Any:
    """A response that says no more than OK."""
    answer = message_class(response)()
    set_status(answer.status)
    return answer
