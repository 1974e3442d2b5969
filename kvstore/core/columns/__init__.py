"""Columns: the columns of archives, compiled.

In here: packing of numbers in few bits (`bits`) and in the forms of an archive's columns
(`int_columns`); texts side by side, split and numbered (`packed_texts`), and out of the forms that
columns of texts have (`text_forms`); the fixed columns of a group as a table (`group_heads`), and
columns joined into records again (`record_columns`); ids in hexadecimal apart from their text
(`hex_ids`); rows sorted by a number (`sorting`). The promises are those of `kvstore.core`. Not in
here: blocks, sections and the meaning of a column (`tiering.archive`). Begin with `bits`. May
import `core`, `errors` and numpy.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.columns import (  # noqa: F401
        bits,
        group_heads,
        hex_ids,
        int_columns,
        packed_texts,
        record_columns,
        sorting,
        text_forms,
    )
