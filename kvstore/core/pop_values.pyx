# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Popped messages: a message with the receipt, attempt and end of its lock.

The idea: a type of the core, so that those of a whole row are made in one call.

Invariants: nothing of a value changes once it is made; values are equal if all their fields are
equal.
"""

cimport cython

from kvstore.core.put_values cimport fields_of, replaced, shown


@cython.no_gc
@cython.freelist(256)
cdef class Popped:
    """A message under lock. `receipt` acks it or changes its lock; `attempt` says how often the
    group got it, this time included; `due_at` is when the lock ends, ms since the epoch.
    """

    __match_args__ = ("message", "receipt", "attempt", "due_at")

    cdef readonly object message, receipt, attempt, due_at

    def __init__(self, message, receipt, attempt, due_at):
        self.message = message
        self.receipt = receipt
        self.attempt = attempt
        self.due_at = due_at

    def __eq__(self, other):
        return fields_of(self) == fields_of(other) if type(self) is type(other) else NotImplemented

    def __hash__(self):
        return hash(fields_of(self))

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return type(self), fields_of(self)

    def __replace__(self, **changes):
        return replaced(self, changes)


def popped_row(list messages not None, list receipts not None, attempt, due_at):
    cdef Popped one
    cdef list out = []
    if len(messages) != len(receipts):
        raise ValueError(f"{len(messages)} messages have {len(receipts)} receipts")
    for message, receipt in zip(messages, receipts):
        one = Popped.__new__(Popped)
        one.message = message
        one.receipt = receipt
        one.attempt = attempt
        one.due_at = due_at
        out.append(one)
    return out
