"""Columns: the columns of archives, compiled.

In here: packing of numbers in few bits (`bits`) and in the forms of an archive's columns
(`int_columns`), texts side by side, split and numbered (`packed_texts`), and columns joined into
records again (`record_columns`). The promises are those of `kvstore.core`. Not in here: blocks,
sections and the meaning of a column (`tiering.archive`). Begin with `bits`. May import `core`,
`errors` and numpy.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.columns import (  # noqa: F401
        bits,
        int_columns,
        packed_texts,
        record_columns,
    )
