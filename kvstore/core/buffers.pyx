# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Buffers: memory of Python's objects as pointers, with their lengths.

The idea: a `View` holds a buffer for as long as it lives, so that nobody resizes or frees it
meanwhile. Functions take one at their beginning, check what they need against its `size` or
`count`, and read by pointers from then on.

Invariant: the memory behind a View is contiguous; `bytes` and `numbers` point at the same place.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdlib cimport realloc

import numpy as np

cdef object _contiguous = np.ascontiguousarray
cdef object _int64 = np.dtype(np.int64)
cdef object _uint64 = np.dtype(np.uint64)


cdef class View:
    def __dealloc__(self):
        PyBuffer_Release(&self._buffer)


cdef View _view(object buffer, int flags):
    cdef View view = View.__new__(View)
    PyObject_GetBuffer(buffer, &view._buffer, flags)
    view.bytes = <uint8_t *>view._buffer.buf
    view.size = view._buffer.len
    view.numbers = <int64_t *>view.bytes
    view.count = view.size >> 3
    return view


cdef View view_of(object buffer):
    # Only to read from.
    return _view(buffer, PyBUF_SIMPLE)


cdef View numbers_of(object array):
    # Numbers of 64 bits to read, with a sign or without. Another array, or one that is not
    # contiguous, is copied.
    dtype = array.dtype
    if dtype is not _int64 and dtype is not _uint64:
        array = _contiguous(array, _int64)
    elif not array.flags.c_contiguous:
        array = _contiguous(array)
    return _view(array, PyBUF_SIMPLE)


cdef View room_of(object array):
    # To write to; of a new array.
    return _view(array, PyBUF_WRITABLE)


cdef void *grown(void *old, Py_ssize_t count, Py_ssize_t width) except NULL nogil:
    # Room for so many items; the old stays as it is where there is none.
    cdef void *found = realloc(old, count * width)
    if found == NULL:
        with gil:
            raise MemoryError()
    return found
