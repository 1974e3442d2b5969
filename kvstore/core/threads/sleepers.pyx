# cython: language_level=3, binding=False
"""Sleepers: threads that sleep until another thread wakes them, many at a time.

The idea: a thread that is woken while the waker has Python's lock wakes only to wait for that. So
the waker gives Python's lock away while it wakes the threads.

Invariants: a sleeper that was woken before it sleeps does not sleep; waking it again does nothing;
an interrupt ends a sleep, and the sleeper is as it was.
"""

from cpython.exc cimport PyErr_CheckSignals

cdef extern from "pythread.h" nogil:
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int waits)
    PyLockStatus PyThread_acquire_lock_timed(
        PyThread_type_lock lock, long long microseconds, int is_interruptible
    )
    void PyThread_release_lock(PyThread_type_lock lock)

cdef enum:
    # Threads woken in one go; above that, Python's lock is taken in between.
    TOGETHER = 64
    SECONDS_MAX = 1 << 30


cdef class Sleeper:
    cdef PyThread_type_lock _lock
    cdef bint _is_woken

    def __cinit__(self):
        self._lock = PyThread_allocate_lock()
        if self._lock is NULL:
            raise MemoryError("the system has no lock left for a thread that sleeps")
        PyThread_acquire_lock(self._lock, False)

    def __dealloc__(self):
        if self._lock is not NULL:
            PyThread_acquire_lock(self._lock, False)
            PyThread_release_lock(self._lock)
            PyThread_free_lock(self._lock)

    def sleep(self, double seconds):
        cdef PyLockStatus found
        if self._is_woken:
            return True
        if not 0 <= seconds <= SECONDS_MAX:
            raise ValueError(f"a thread sleeps 0 to {SECONDS_MAX} seconds, not {seconds}")
        with nogil:
            found = PyThread_acquire_lock_timed(self._lock, <long long>(seconds * 1e6), True)
        if found == PY_LOCK_INTR:
            PyErr_CheckSignals()
        return self._is_woken


def wake_all(list sleepers not None):
    cdef PyThread_type_lock locks[TOGETHER]
    cdef list held = sleepers[:]
    cdef Sleeper one
    cdef int count = 0, i
    for sleeper in held:
        if not isinstance(sleeper, Sleeper):
            raise TypeError(f"a sleeper is to be woken, not {type(sleeper).__name__}")
    for one in held:
        if one._is_woken:
            continue
        one._is_woken = True
        locks[count] = one._lock
        count += 1
        if count == TOGETHER:
            with nogil:
                for i in range(count):
                    PyThread_release_lock(locks[i])
            count = 0
    with nogil:
        for i in range(count):
            PyThread_release_lock(locks[i])
