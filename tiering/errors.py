"""Errors of tiering that no read of the store raises; those are in `kvstore.errors`.

Invariant: a step that raised one of these changed nothing that a reader sees. Steps that a run had
done before it stay done. An erasure that raised keeps the part that it has erased, and the next
call does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.errors import CallerError, ConfigError, StoreError


class PolicyIllegal(ConfigError):
    """A tiering policy that is out of range or contradicts itself."""


class EncryptionMissing(ConfigError):
    """Something is encrypted, or to be, and the package that does it is not installed."""


class PlaceError(StoreError):
    """Base of what goes wrong with a place that keeps archives; `place` is its path or URL."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class PlaceUnavailable(PlaceError):
    """The place does not answer, or not in time, after all tries."""


class PlaceDenied(PlaceError):
    """The place refuses the credentials, or what they may do does not include this."""


class PlaceFull(PlaceError):
    """The place has no room."""


class ObjectNotFound(PlaceError):
    """The place has no object of that name."""


class ObjectExists(PlaceError):
    """An object of that name is there already: somebody else has committed first."""


class ObjectTooShort(PlaceError):
    """An object ends before the bytes that were asked for; `size` is what it has, in bytes."""

    def __init__(self, message: str, place: str = "", size: int = 0) -> None:
        super().__init__(message, place)
        self.size = size


class ObjectNameIllegal(PlaceError, CallerError):
    """A name that an object can't have, or that leads out of the place."""


class PlaceIllegal(PlaceError, ConfigError):
    """A path or URL that names no place, or a setting of one that is unknown or can't be."""


class PlaceUnsuitable(PlaceError):
    """The place can't do what keeping archives takes; two workers could both commit there."""


class NothingToRestore(StoreError):
    """The place has no archives, or none of what was asked for."""


class StoresAmbiguous(CallerError):
    """The place has archives of several stores; `stores` are their ids, in hex."""

    def __init__(self, message: str, stores: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.stores = list(stores)


class TargetNotEmpty(CallerError):
    """A store is to be restored to a folder that has something in it."""


class TieringStopped(StoreError):
    """The step was told to stop."""


class TieringBusy(StoreError):
    """Another worker does this for this store."""


class FileRefused(StoreError):
    """The operating system refuses something with one of the store's files; what was being done is
    undone, or is put right by the next run.
    """


class ExtraMissing(StoreError):
    """Something was asked for that needs an optional dependency; `extra` names it, as in
    `pip install kvmq[plot]`.
    """

    def __init__(self, message: str, extra: str = "") -> None:
        super().__init__(message)
        self.extra = extra


class SparkUnsuitable(StoreError):
    """Spark can't be used as it is: Java, PySpark or PyArrow is missing or too old."""


class SparkFailed(StoreError):
    """A job of Spark failed, or a question that it was asked has no answer."""


class ExportBroken(StoreError):
    """An export's own notes, or files that it committed, are not as it left them."""


class ExportBusy(StoreError):
    """Another export to the same place has begun since."""


class SchemaIllegal(ConfigError):
    """A schema for a topic's bodies that is none, or none that can be found in them."""


class SchemaContradicts(SchemaIllegal):
    """A schema for a topic's bodies that is not the one its export has been given."""


class TableFailed(StoreError):
    """A table that is exported to, or its catalog, can't be used."""


class MessagesLost(StoreError):
    """A stream was to go on where its queue holds nothing any more: `topic`, `queue`, and the
    offsets from `first` to before `end` that went.
    """

    def __init__(
        self, message: str, topic: str = "", queue: int = -1, first: int = -1, end: int = -1
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.queue = queue
        self.first = first
        self.end = end


class RowIllegal(CallerError):
    """A row of a frame can't be written as a message; `topic`, `queue` and `offset` say which, as
    far as it does.
    """

    def __init__(
        self,
        message: str,
        topic: str | None = None,
        queue: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.queue = queue
        self.offset = offset


class JobTooLarge(CallerError):
    """A job that writes has more tasks, or more bytes, than there are numbers for."""


class OffsetsTaken(CallerError):
    """A job's archives have offsets that others in the place have; nothing of the job counts."""


class JobAborted(StoreError):
    """A job was given up before its commit; none of its archives count."""


class CommitUncertain(PlaceError):
    """A place went out of reach while a job was committed: all of the job counts, or nothing."""


class AttachConflict(CallerError):
    """Archives can't come into a store as they are; nothing was changed. Where it is for offsets,
    `topic`, `queue`, `first` and `last` say which.
    """

    def __init__(
        self,
        message: str,
        topic: str | None = None,
        queue: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.queue = queue
        self.first = first
        self.last = last
