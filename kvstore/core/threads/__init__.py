"""Threads in the core: threads of Python that are woken without Python's lock.

In here: sleepers (`sleepers`). Not in here: locks, signals and the threads of a store
(`kvstore.process`). Begin with `sleepers`. May import `core`.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.threads import sleepers  # noqa: F401
