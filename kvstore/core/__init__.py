"""Core: the work that is done for every message, compiled.

In here: Cython modules (`.pyx`), each with the promises and types of its functions in the `.pyi`
beside it; `arrow` has those for messages in columns, `columns` those for archives, `popping` those
for pops. They are the only implementation of their work; plain ones in tests/reference judge them.
A function takes buffers and numbers and gives such back. It checks every length before it reads,
and lets other threads run where a loop is long. `unzipped` serves packages that are zip files. Not
in here: files of stores, RocksDB, locks, and the meaning of the numbers (`record`, `index`, and the
archives of `tiering`). Begin with `buffers`, then `hashing` and `packed_runs`. May import `errors`,
`record.names` (constants alone) and numpy.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

try:
    with importable(__name__):
        from kvstore.core import (  # noqa: F401
            crc,
            encoding,
            hashing,
            messages,
            packed_pairs,
            packed_runs,
            put_values,
            queue_offsets,
            records,
            scan,
            tail,
            unique_ids,
        )
    from kvstore.core import arrow, columns, popping  # noqa: F401
except ImportError as e:
    if e.name is None or not e.name.startswith("kvstore.core"):
        raise
    raise ImportError(
        "kvstore.core is not compiled, or not wholly; in a checkout run `make setup`, elsewhere"
        " `pip install` anew",
        name=e.name,
    ) from e
