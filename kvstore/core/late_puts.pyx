# cython: language_level=3, boundscheck=False, wraparound=False, binding=False
"""Late puts: batches that were begun before a queue was closed.

The idea: an encoder counts how often queues were closed, and each batch has the count of its
beginning. So a put whose turn comes compares two numbers, and only a late one looks at its queues
(`meta.closed_queues`).

Invariant: a batch that is not late was begun behind the last closing.
"""

from kvstore.core.encoding cimport Encoder, PreparedBatch


def count_closing(Encoder encoder not None):
    encoder.closings += 1


def late_targets(PreparedBatch batch not None, Encoder encoder not None):
    cdef Py_ssize_t i
    if batch.closings == encoder.closings:
        return None
    return [
        batch.rows[i].target if batch.rows[i].due else batch.rows[i].queue_key
        for i in range(batch.count)
    ]
