"""See put_route.pyx."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t


@cython.final
cdef class PutRoute:
    # The facts that each put reads come first, in few lines of the processor's cache: puts to many
    # topics find their routes in memory.
    cdef readonly uint64_t base
    cdef bytes _wire
    # -1: as the encoder's.
    cdef Py_ssize_t compress_above
    cdef readonly uint32_t write_queues
    cdef readonly uint32_t overhead
    cdef uint32_t _magic
    cdef int host_size
    cdef readonly int key_level
    # The messages that the kind refuses; 0: it takes all.
    cdef int rules
    # Whether it is the topic in which delayed messages wait.
    cdef readonly bint holds_pending
    cdef readonly bint takes_delays
    # Milliseconds; -1: the topic takes no dedup ids.
    cdef readonly int64_t dedup_window
    # The turn of the next message that names no queue.
    cdef uint64_t _turn
    cdef readonly str kind
    # A text, or none: so the garbage collector need not look at routes.
    cdef str compression
    cdef int check_kind(self, bint delayed, bint ordered, bint prepared, bint keyed) except -1
    cdef uint64_t queue_key(self, int64_t queue, bint grouped, uint32_t group_hash) noexcept


# The dedup window of a route, which may be None.
cdef int64_t window_of(PutRoute route) noexcept
