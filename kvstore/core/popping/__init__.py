"""Popping: the part of the core for pops and acks, compiled.

In here: receipts, which prove deliveries, and the messages that are handed out with them
(`receipts`); sets of offsets (`offset_sets`); lock rows as counters in memory, and the usual step
of a pop and an ack (`inflight`). The promises are those of `kvstore.core`. Not in here: locks of
threads, writes, and the rows that are due (`pop`). Begin with `receipts`. May import `core` and
`errors`.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.popping import inflight, offset_sets, receipts  # noqa: F401
