# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Put route: the facts of a topic that its puts need.

The idea: encoding reads the numbers of a route without a look-up by name. `encoding.pyi` says their
meaning.

Invariant: only the turn of messages that name no queue changes.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    # A record's fixed bytes beside its hosts and its topic.
    FIXED_BESIDE = 74


@cython.final
cdef class PutRoute:
    def __init__(
        self, base, write_queues, host_size, magic, bytes wire not None, key_level, compress_above,
        compression, bint holds_pending=False, dedup_window=None,
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
        self.dedup_window = -1 if dedup_window is None else dedup_window

    cdef uint64_t queue_key(self, int64_t queue, bint grouped, uint32_t group_hash) noexcept:
        # Of the queue that a message names, unless that is -1; of its group's; of its turn's.
        cdef uint64_t turn = group_hash
        if queue >= 0:
            turn = <uint64_t>queue
        elif not grouped:
            turn = self._turn
            self._turn += 1
        return self.base + turn % self.write_queues
