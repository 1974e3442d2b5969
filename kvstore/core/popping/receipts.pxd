"""See receipts.pyx."""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef enum:
    RECEIPT_KEY = 28
    RECEIPT_HEAD = 36
    RECEIPT_HEAD_CHARS = 72
    # The tags of all bits of a row.
    RECEIPT_TAGS = 1536


cdef struct Signed:
    # A head, as bytes and text; the tags of its first bits, as many as were asked for; and how
    # many heads there were.
    uint8_t head[RECEIPT_HEAD]
    uint8_t text[RECEIPT_HEAD_CHARS]
    uint8_t tags[RECEIPT_TAGS]
    int count
    Py_ssize_t heads


@cython.final
cdef class Receipts:
    cdef bytes _secret
    # The head that was signed last: mostly it is asked for again, by its other messages or its ack.
    cdef Signed _last
    cdef void _sign(self, const uint8_t *head, int count, uint8_t *tags) noexcept
    cdef uint8_t *_tags_of(self, int count) noexcept
    cdef void _turn_to(self, const uint8_t *head) noexcept
    cdef object _fault(self, object text, uint8_t *bit)
    cdef str _changed(self, str text)


@cython.final
cdef class Asked:
    # `_numbers` says for each receipt which of `rows` it names; -1 for an error.
    cdef readonly list rows, bits, errors
    cdef readonly dict tables
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t *_numbers
    cdef uint8_t *_bit_of
    cdef int _reserve(self, Py_ssize_t count) except -1
    cdef int _add(self, Py_ssize_t number, uint64_t *bits) except -1


@cython.final
cdef class Delivery:
    cdef Receipts _by
    cdef uint8_t _head[RECEIPT_HEAD]
    # Behind the last bit of its messages.
    cdef Py_ssize_t _count
    cdef str _receipt(self, Py_ssize_t bit)
    cdef int _expect(self, object locked) except -1
    cdef list hand_out(self, list messages, object locked, object attempt, object due_at)


cdef Delivery delivery_of(Receipts by, const uint8_t *key, uint64_t nonce)


cdef class Popped:
    # `_receipt` is its text, or the delivery that makes it.
    cdef readonly object message, attempt, due_at
    cdef object _receipt
    cdef uint8_t _bit
