"""Pending messages in the core: the records that end the wait of one.

In here: copies of messages that wait, to their topics or to wait for another time, and notes that
one is cancelled. Not in here: which messages wait, which is `core.tail`, and deciding what is due,
which is `timing`. Begin with `pending_records`. May import `core` and
`errors`.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.pending import pending_records  # noqa: F401
