"""Errors: every error that kvmq raises, and how errors show values that they were given.

The idea: an error states the request, the finding and the remedy. A caller's mistake is also a
`ValueError`; everything derives from `StoreError`, so one `except` catches the lot. An error that a
program may want to act on carries the facts as attributes, not only as text.

Invariants: the messages of a put that raised `PutRefused`, or an error of damage, are not there,
and don't come back after a crash; a topic that such a put made may stay. A put that raised
`FlushFailed` may have its messages in the log, and so may one that raised `StoreClosed` while it
waited for the disk. A call that does one thing after another (retention, sealing, handing over,
erasing, merging) may raise behind some of its steps: each of them is done wholly or not at all, and
the next call goes on from there. A pop takes several looks; messages that the looks before the
error had locked come back when the locks run out. All other calls that raised changed nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

_SHOWN_MAX = 200
"""Characters of a value in a message."""


def shown(value: object) -> str:
    """A caller's value as text for an error. It works for any value, is short, and can be printed
    on any terminal.
    """
    try:
        text = repr(value)
    except Exception:
        # The value may be an int of more digits than Python writes, or an object whose `repr`
        # fails; maybe inside a list.
        kind = type(value).__name__
        text = f"<{kind} of {value.bit_length()} bits>" if isinstance(value, int) else f"<{kind}>"
    if len(text) > _SHOWN_MAX:
        text = f"{text[:_SHOWN_MAX]}..."
    return text.encode("utf-8", "backslashreplace").decode()


class StoreError(Exception):
    """Base of all errors of kvmq. They can be pickled and copied with all their attributes,
    whatever arguments their constructors take.
    """

    def __reduce__(self) -> tuple[Callable[..., StoreError], tuple[object, ...]]:
        return _again, (type(self), self.args, vars(self))


def _again(kind: type[StoreError], args: tuple[object, ...], carried: dict[str, Any]) -> StoreError:
    error: StoreError = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(carried)
    return error


class CallerError(StoreError, ValueError):
    """The call itself is at fault; the same call will fail again."""


# --- the store as a whole -------------------------------------------------------------------


class StoreClosed(StoreError):
    """The store (or the log) was closed before the call, or while it waited. The messages of a put
    that waited for the disk may be there at the next opening.
    """


class StoreReadOnly(StoreError):
    """A write was asked of a store that was opened read-only, or that went read-only after a failed
    sync.
    """


class StoreLocked(StoreError):
    """Another process (or another `Store` in this one) holds the folder.

    `pid` is the holder's process id, or None if it could not be read.
    """

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class StoreServed(StoreLocked):
    """Another process serves the store in the folder: `kvstore.connect(url)` is the way in. `url`
    is where, `pid` the server's process id.
    """

    def __init__(self, message: str, pid: int | None = None, url: str = "") -> None:
        super().__init__(message, pid)
        self.url = url


class ConnectionLost(StoreError):
    """A served store can't be reached, or went away: a call that changes the store may have been
    made or not.
    """


class ProtocolMismatch(StoreError):
    """The other side of a connection speaks another protocol, or another version than this one;
    `found` and `supported` are versions.
    """

    def __init__(self, message: str, found: int = 0, supported: int = 0) -> None:
        super().__init__(message)
        self.found = found
        self.supported = supported


class Cancelled(StoreError):
    """A call was taken back by its caller before it was made."""


class AddressInUse(StoreError):
    """Another process listens at the address of a door."""


class StoreForked(StoreError):
    """The store was opened before this process was forked from the one that opened it, or RocksDB
    was in use there. It is the parent's alone; this process holds no part of the store.
    """


class StoreNotFound(CallerError):
    """There is nothing at the path that could be opened."""


class FormatTooNew(StoreError):
    """The store, or an archive, was written by a newer version of kvmq; `found` and `supported` are
    format versions, `archive` names the archive.
    """

    def __init__(self, message: str, found: int, supported: int, archive: str = "") -> None:
        super().__init__(message)
        self.archive = archive
        self.found = found
        self.supported = supported


class FormatTooOld(StoreError):
    """A store, or an archive, was written by a version of kvmq before 1.0, in a format that this
    one does not read; `found` and `supported` are format versions, `archive` names the archive.
    `kvmq rebuild DIR` makes a store's index anew.
    """

    def __init__(self, message: str, found: int, supported: int, archive: str = "") -> None:
        super().__init__(message)
        self.archive = archive
        self.found = found
        self.supported = supported


class ConfigError(CallerError):
    """A setting is unknown, out of range, or contradicts another or the existing store."""


# --- putting --------------------------------------------------------------------------------


class PutRefused(StoreError):
    """Base of the reasons for which a put fails fast; none of its messages was written."""


class StoreBusy(PutRefused):
    """The log's write lock was not free within the busy limit (`StoreConfig.busy_timeout`), or, in
    staged mode, both write buffers are full.
    """


class DiskFull(PutRefused):
    """The disk is above its write watermark, or has no room for a segment, the index or another
    file that the call needs.
    """


class MessageIllegal(PutRefused, CallerError):
    """A field of the message is missing, of the wrong type, out of range or illegal."""


class MessageTooLarge(MessageIllegal):
    """Body or record is above the limit; `size` and `limit` are bytes."""

    def __init__(self, message: str, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class PropertiesTooLarge(MessageTooLarge):
    """The encoded properties are above 32,767 bytes."""


class FlushFailed(StoreError):
    """The disk refused to take written data. The store is read-only from here on: close and open it
    again. The messages of a put that raised this may be there then.

    After a failed sync the kernel may have dropped the dirty pages, so trying again proves nothing.
    """


# --- finding --------------------------------------------------------------------------------


class FilterIllegal(CallerError):
    """A filter's text is illegal: `expression` is the text, `position` the character (from 0) of
    the fault, or the text's length if the fault is at its end.
    """

    def __init__(self, message: str, expression: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.expression = expression
        self.position = position


class TopicNotFound(CallerError):
    """No such topic, and it is not to be created by itself."""


class TopicExists(CallerError):
    """A topic of that name exists already."""


class GroupNotFound(CallerError):
    """No such consumer group."""


class GroupExists(CallerError):
    """A group of that name exists already."""


class ReceiptIllegal(CallerError):
    """A text that is no receipt of this store."""


class ReceiptExpired(CallerError):
    """A receipt whose delivery is over: the message was handed out again, moved, reset or taken
    away.
    """


class DelayEnded(CallerError):
    """The message does not wait any more: it was delivered, or, if `is_cancelled`, it was cancelled
    or went with its topic.
    """

    def __init__(self, message: str, is_cancelled: bool) -> None:
        super().__init__(message)
        self.is_cancelled = is_cancelled


class TransactionEnded(CallerError):
    """The transaction was ended in the other way before: committed if `is_committed`, else rolled
    back or given up.
    """

    def __init__(self, message: str, is_committed: bool) -> None:
        super().__init__(message)
        self.is_committed = is_committed


class ScheduleNotFound(CallerError):
    """No such schedule."""


class ScheduleExists(CallerError):
    """A schedule of that name exists already."""


class ScheduleIllegal(CallerError):
    """The times of a schedule are illegal. Of a cron expression, `expression` is the text and
    `position` the character (from 0) of the fault, or the length of the text if the fault is at its
    end.
    """

    def __init__(self, message: str, expression: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.expression = expression
        self.position = position


class InFlight(CallerError):
    """Messages are locked that this call would make unread again."""


class NamespaceNotFound(CallerError):
    """No such namespace: none was made, and no topic or group has its name in front."""


class NamespaceExists(CallerError):
    """A namespace of that name exists already."""


class QueueNotFound(CallerError):
    """The topic has no queue of that number."""


class QueueNotEmpty(CallerError):
    """A queue that was to be taken from readers holds messages; `queue` is its number."""

    def __init__(self, message: str, queue: int = -1) -> None:
        super().__init__(message)
        self.queue = queue


class OffsetNotFound(StoreError, LookupError):
    """The queue holds no message at that offset; it has `min_offset` to `max_offset` - 1."""

    def __init__(self, message: str, min_offset: int, max_offset: int) -> None:
        super().__init__(message)
        self.min_offset = min_offset
        self.max_offset = max_offset


class MessageNotFound(StoreError, LookupError):
    """No message has that id, or none begins at that position."""


# --- a served store -------------------------------------------------------------------------


class NotAuthenticated(StoreError):
    """The server does not know who calls: credentials are missing, wrong, expired or changed."""


class NotAllowed(CallerError):
    """A known client has no right to do this. `action` is the right that it lacks, for `topic` and
    `group`, each empty if it is not about one.
    """

    def __init__(self, message: str, action: str = "", topic: str = "", group: str = "") -> None:
        super().__init__(message)
        self.action = action
        self.topic = topic
        self.group = group


class ExposureRefused(ConfigError):
    """A door would listen beyond loopback without credentials or without TLS."""


class LimitExceeded(StoreError):
    """A client is above a limit of the server. `retry_after` are the seconds after which the same
    request may go through; 0.0 if time alone does not help.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


# --- a store on several shards ---------------------------------------------------------------


class AcrossShards(CallerError):
    """A call is about messages on several shards, or about the log of one that is not named."""


class PartlyDone(StoreError):
    """A call for several shards was done on some of them: `done` has their names, `errors` the
    others' errors by name. `results`, of a put, has the result or the error of each message.
    """

    def __init__(
        self,
        message: str,
        done: Sequence[str] = (),
        errors: Mapping[str, Exception] | None = None,
        results: Sequence[object] = (),
    ) -> None:
        super().__init__(message)
        self.done = tuple(done)
        self.errors = dict(errors or {})
        self.results = list(results)


# --- damage ---------------------------------------------------------------------------------


class Damaged(StoreError):
    """Base of all errors that say: these bytes are not the ones that were written."""


class RecordDamaged(Damaged):
    """Bytes that should be a record are not one.

    `position` is where the record should begin (-1 if unknown); `next_offset` is the queue offset
    at which a reader can go on, where that is known.
    """

    def __init__(self, message: str, position: int = -1, next_offset: int | None = None) -> None:
        super().__init__(message)
        self.position = position
        self.next_offset = next_offset


class SegmentDamaged(Damaged):
    """A segment file is missing, of the wrong size, unreadable or not a commit log; `path` names
    it.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class IndexDamaged(Damaged):
    """RocksDB is missing, can't be opened, or contradicts the log. `kvmq rebuild DIR` makes it
    anew.
    """


class IndexUnavailable(StoreError):
    """RocksDB can't be opened now for a reason that says nothing about what is in it: permissions,
    too many open files, somebody else who has it open.
    """


class LogDamaged(Damaged):
    """Corruption below the durable end was found and `on_corruption="fail"` was asked for."""


class FormatError(Damaged):
    """A packed value (run, key block, manifest) does not follow its format."""


# --- archives -------------------------------------------------------------------------------


class ArchiveDamaged(Damaged):
    """An archive, or one block, has other bytes than were written; its other blocks stay readable.

    `archive` names it, `block` is the block's number (-1: not one block alone). `next_offset` is
    the queue offset at which a reader can go on, where that is known.
    """

    def __init__(
        self, message: str, archive: str = "", block: int = -1, next_offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.archive = archive
        self.block = block
        self.next_offset = next_offset

    def placed(self, message: str, archive: str, block: int, next_offset: int | None) -> Self:
        """A copy of this error that says more about where it was met."""
        found = copy.copy(self)
        found.args = (message,)
        found.archive, found.block, found.next_offset = archive, block, next_offset
        return found


class ArchiveMissing(ArchiveDamaged):
    """An archive that the catalog lists is not where it should be. It may be brought back."""


class KeyMissing(ArchiveMissing):
    """The key of a topic's messages in archives is not at hand; `topic` names the topic. The key
    may be elsewhere, so nothing is concluded from its absence.
    """

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class KeyDestroyed(ArchiveDamaged):
    """The key of a topic's messages in archives was destroyed, so these messages are gone for good;
    `topic` names the topic.
    """

    def __init__(self, message: str, topic: str = "") -> None:
        super().__init__(message)
        self.topic = topic


class ArchiveUnavailable(StoreError):
    """An archive can't be read now, for a reason that says nothing about what is in it: the place
    does not answer, or refuses; `archive` names it.
    """

    def __init__(self, message: str, archive: str = "") -> None:
        super().__init__(message)
        self.archive = archive
