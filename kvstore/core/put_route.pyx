# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Put route: the facts of a topic that its puts need.

The idea: encoding reads the numbers of a route without a look-up by name. `encoding.pyi` says their
meaning. A topic's kind becomes rules, bits of one number, which is 0 for most topics.

Invariant: only the turn of messages that name no queue changes.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    # A record's fixed bytes beside its hosts and its topic.
    FIXED_BESIDE = 74

from kvstore.core.put_fields cimport refuse

cdef enum:
    NO_DELAYED = 1
    ONLY_DELAYED = 2
    ONLY_ORDERED = 4
    ONLY_PREPARED = 8
    NO_PREPARED = 16
    ONLY_KEYED = 32

cdef dict _RULES = {
    "fifo": NO_DELAYED | ONLY_ORDERED | NO_PREPARED,
    "delay": ONLY_DELAYED | NO_PREPARED,
    "transaction": ONLY_PREPARED,
    "compacted": ONLY_KEYED,
}


@cython.final
cdef class PutRoute:
    def __cinit__(
        self, base, write_queues, host_size, magic, bytes wire not None, key_level, compress_above,
        compression, bint holds_pending=False, str kind not None="normal", bint takes_delays=True,
        dedup_window=None,
    ):
        self.base = base
        self.write_queues = write_queues
        if host_size not in (8, 20):
            raise ValueError("a packed host takes 8 or 20 bytes")
        if not write_queues:
            raise ValueError("a topic has one queue at least")
        self.host_size = host_size
        self.overhead = FIXED_BESIDE + 2 * host_size + len(wire)
        self._magic = magic
        self._wire = wire
        self.key_level = key_level
        self.compress_above = -1 if compress_above is None else compress_above
        self.compression = compression
        self.holds_pending = holds_pending
        self.kind = kind
        self.takes_delays = takes_delays
        self.dedup_window = -1 if dedup_window is None else dedup_window
        self.rules = _RULES.get(kind, 0) | (0 if takes_delays else NO_DELAYED)

    cdef int check_kind(self, bint delayed, bint ordered, bint prepared, bint keyed) except -1:
        # Of a route with rules, if it takes a message: one that has a delay, or a place in an
        # order (a group or a queue), or is prepared, or has a key.
        cdef int against = (
            (NO_DELAYED if delayed else ONLY_DELAYED)
            | (0 if ordered else ONLY_ORDERED)
            | (NO_PREPARED if prepared else ONLY_PREPARED)
            | (0 if keyed else ONLY_KEYED)
        )
        if self.rules & against:
            refuse("the topic's kind does not take the message")
        return 0

    cdef uint64_t queue_key(self, int64_t queue, bint grouped, uint32_t group_hash) noexcept:
        # Of the queue that a message names, unless that is -1; of its group's; of its turn's.
        cdef uint64_t turn = group_hash
        if queue >= 0:
            turn = <uint64_t>queue
        elif not grouped:
            turn = self._turn
            self._turn += 1
        return self.base + turn % self.write_queues


cdef int64_t window_of(PutRoute route) noexcept:
    # A topic that is to be made has no window.
    return -1 if route is None else route.dedup_window
