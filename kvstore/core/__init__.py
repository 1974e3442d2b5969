"""Core: the work that is done for every message, compiled.

In here: Cython modules (`.pyx`), each with the promises and types of its functions in the `.pyi`
beside it; `arrow` has those for messages in columns, `columns` those for archives, `dedup` those
for dedup ids, `popping` those for pops, `transport` those for connections, `threads` those for
threads that wait. They are the only implementation of their work; plain ones in tests/reference
judge them. A function takes buffers and numbers and gives such back. It checks every length before
it reads, and lets other threads run where a loop is long. Two modules are plain Python: `names` has
every name and number with a meaning in a record; `unzipped` imports the compiled ones, from zip
files too. Not in here: files of stores, RocksDB, locks, and the meaning of the numbers (`record`,
`index`, and the archives of `tiering`).
Begin with `buffers`, then `hashing` and `packed_runs`. May import `errors` and numpy.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

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
