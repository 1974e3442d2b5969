# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Put route: the facts of a topic that its puts need.

The idea: encoding reads the numbers of a route without a look-up by name. `encoding.pyi` says their
meaning.

Invariant: only the turn of messages that name no queue changes.
"""

cimport cython


@cython.final
cdef class PutRoute:
    def __init__(
        self, base, write_queues, host_size, magic, bytes wire not None, key_level, compress_above,
        compression, bint holds_pending=False,
    ):
        self.base = base
        self.write_queues = write_queues
        if host_size not in (8, 20):
            raise ValueError("a packed host takes 8 or 20 bytes")
        if not write_queues:
            raise ValueError("a topic has one queue at least")
        self.overhead = FIXED_BESIDE + 2 * host_size + len(wire)
        self._magic = magic
        self._wire = wire
        self.key_level = key_level
        self.compress_above = -1 if compress_above is None else compress_above
        self.compression = compression
        self.holds_pending = holds_pending
