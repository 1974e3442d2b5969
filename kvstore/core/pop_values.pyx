# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Popped messages: a message with the receipt, attempt and end of its lock.

The idea: a type of the core, so that those of a whole row are made in one call.

Invariants: nothing of a value changes once it is made; values are equal if all their fields are
equal.
"""

cimport cython


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

    cdef tuple _fields(self):
        return self.message, self.receipt, self.attempt, self.due_at

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return self._fields() == (<Popped>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        pairs = zip(Popped.__match_args__, self._fields())
        fields = ", ".join([f"{name}={value!r}" for name, value in pairs])
        return f"{type(self).__name__}({fields})"

    def __reduce__(self):
        return type(self), self._fields()

    def __replace__(self, **changes):
        return type(self)(**(dict(zip(Popped.__match_args__, self._fields())) | changes))


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
