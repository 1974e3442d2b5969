"""Arrow: messages in columns, in and out, by Arrow's C data interface, compiled.

In here: columns that a caller gives (`given_columns`) become the records of a put (`put_rows`);
records become columns that any Arrow library takes (`pulled_columns`), by what exports them
(`column_batch`); columns become plain values that can be sent (`packed_columns`). The promises are
those of `kvstore.core`; the interface's structures are in `abi`. No Arrow library is needed. Not in
here: the parts of a record (`core.encoding`), and the search for the records of a pull
(`read.pull`). Begin with `abi`. May import `core` and `errors`.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.arrow import (  # noqa: F401
        column_batch,
        given_columns,
        packed_columns,
        pulled_columns,
        put_rows,
    )
