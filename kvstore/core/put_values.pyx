# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Values: a message to put, and the result of its put.

The idea: types of the core, so that encoding reads a message's fields without a look-up by name. A
result keeps numbers; each becomes an object of Python when somebody asks for it.

Invariants: values are equal if their types are the same and all their fields are equal; none can be
part of a cycle that the garbage collector would have to find.
"""

cimport cython

from enum import StrEnum
from types import MappingProxyType

NO_PROPERTIES = MappingProxyType({})


class PutStatus(StrEnum):
    """How safe a message was when the put returned."""

    STAGED = "staged"
    WRITTEN = "written"
    FLUSHED = "flushed"


cdef tuple fields_of(object value):
    return tuple([getattr(value, name) for name in value.__match_args__])


cdef str shown(object value):
    pairs = zip(value.__match_args__, fields_of(value))
    return f"{type(value).__name__}({', '.join([f'{name}={field!r}' for name, field in pairs])})"


cdef object replaced(object value, dict changes):
    return type(value)(**(dict(zip(value.__match_args__, fields_of(value))) | changes))


@cython.no_gc
cdef class Message:
    """One message to put.

    `topic` and `body` (any bytes-like object, 0 bytes to the store's limit) are required. `queue`
    None lets the store spread messages over the topic's write queues, or keep one `message_group`
    together. `tag` is one word for filters, `keys` are what `query` finds, `properties` are text
    pairs. `flags` is a 32-bit number of the caller's own. `message_id` None makes a unique one.
    `born_at` is in milliseconds since the epoch; None means now. From `expires_at` on, in
    milliseconds since the epoch, pulls and pops pass the message over; None means never. A time
    that is past is allowed: the message is stored, and has expired already.

    One of `deliver_at`, `delay` and `delay_level` delays the message: until a time (ms since the
    epoch), by so many seconds, or by a level of RocketMQ (1 to 18: 1 s to 2 h). It is not in its
    queue before that. A time that has passed is now; 40 years are the longest delay.

    A repeat of a `dedup_id` within the topic's `dedup_window` is not put again (see `PutResult`); a
    delayed message has none.
    """

    __match_args__ = (
        "topic", "body", "queue", "tag", "keys", "properties", "message_group", "flags",
        "message_id", "born_at", "deliver_at", "delay", "delay_level", "expires_at", "dedup_id",
    )
    __hash__ = None

    def __init__(
        self, topic, body, queue=None, tag=None, keys=(), properties=NO_PROPERTIES,
        message_group=None, flags=0, message_id=None, born_at=None, deliver_at=None, delay=None,
        delay_level=None, expires_at=None, dedup_id=None,
    ):
        self.topic = topic
        self.body = body
        self.queue = queue
        self.tag = tag
        self.keys = keys
        self.properties = properties
        self.message_group = message_group
        self.flags = flags
        self.message_id = message_id
        self.born_at = born_at
        self.deliver_at = deliver_at
        self.delay = delay
        self.delay_level = delay_level
        self.expires_at = expires_at
        self.dedup_id = dedup_id

    def __eq__(self, other):
        return fields_of(self) == fields_of(other) if type(self) is type(other) else NotImplemented

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return type(self), fields_of(self)

    def __replace__(self, **changes):
        return replaced(self, changes)


@cython.no_gc
@cython.freelist(64)
cdef class PutResult:
    """Where a message went: `position` and `size` are bytes in the log, `offset` its place in its
    queue; -1 for a delayed message, which gets its place there when it is delivered. With
    `duplicate` it was not put: all this is of the message with its dedup id.
    """

    __match_args__ = (
        "message_id", "topic", "queue", "offset", "position", "size", "status", "duplicate",
    )
    __hash__ = None

    def __init__(
        self, message_id, topic, queue, offset, position, size, status, duplicate=False,
    ):
        self._id = message_id
        self._number = -1
        self.topic = topic
        self.queue = queue
        self.offset = offset
        self.position = position
        self.size = size
        self.status = status
        self.duplicate = duplicate

    @property
    def message_id(self):
        if self._number >= 0:
            self._id = f"{self._id}{self._number:012X}"
            self._number = -1
        return self._id

    @message_id.setter
    def message_id(self, value):
        self._id = value
        self._number = -1

    def __eq__(self, other):
        return fields_of(self) == fields_of(other) if type(self) is type(other) else NotImplemented

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return type(self), fields_of(self)
