"""Dedup: the part of the core for dedup ids, compiled.

In here: the ids that were put lately (`known_ids`). The promises are those of `kvstore.core`. Not
in here: the look for older ids, and the turns of threads (`kvstore.engine.repeats`). Begin with
`known_ids`. May import `core`.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.dedup import known_ids  # noqa: F401
