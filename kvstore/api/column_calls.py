"""The calls of a store on messages in columns, with Arrow record batches in and out.

The idea: as in `calls`, of which this is a part: a call hands the work to the writer or the reader.
Columns come and go by Arrow's C data interface, so the caller chooses the library.

Invariant: the same messages are put and pulled as by `put_batch` and `pull`, with the same errors.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.engine.engine import Engine
from kvstore.errors import StoreClosed
from kvstore.message import ColumnsPut, PulledBatch
from kvstore.read.filters import compile_filter
from kvstore.read.pull import pull_columns
from kvstore.read.sql import SqlFilter


class ColumnCalls:
    """The calls, see the module. `engine` has the parts of the open store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.path = engine.path

    def _check_open(self) -> None:
        if self._engine.is_closed:
            raise StoreClosed(f"{self.path} was closed; open it again")

    def put_columns(self, topic: str, columns: object) -> ColumnsPut:
        """Puts the rows of an Arrow record batch to a topic, in order: as `put_batch` does, without
        an object for each message.

        `columns` is a record batch, a table, or a stream of batches, of any library that has
        Arrow's `__arrow_c_array__` or `__arrow_c_stream__`. It needs a column `body` (binary or
        string) and may have `queue`, `tag`, `keys` (lists of strings), `properties` (maps of
        strings), `message_group`, `flags`, `message_id`, `dedup_id`, `born_at`, `deliver_at` and
        `expires_at` (ms, or a timestamp); a null stands for the field's default (see `Message`).
        All rows are one batch, also those of several batches of a table or stream, which is read to
        its end first: an error writes none of them (a crash may leave a leading part), and other
        puts wait as long as they are copied.
        The records are made in memory before they are written: put more than some 100 MB in
        parts.

        Raises what `put_batch` does: `MessageIllegal` names a column and its type if it is not one
        of these, or the row at fault. The result has positions, offsets and ids as columns, and
        says which rows repeat a dedup id.

        >>> rows = pyarrow.table({"body": [b"1", b"2"], "tag": ["paid", None]})  # doctest: +SKIP
        >>> store.put_columns("orders", rows).count  # doctest: +SKIP
        2
        """
        return self._engine.writer.put_columns(topic, columns)

    def pull_columns(
        self,
        topic: str,
        queue: int,
        offset: int,
        limit: int = 1024,
        *,
        columns: Sequence[str] | None = None,
        max_bytes: int | None = None,
        filter: str | SqlFilter | None = None,
    ) -> PulledBatch:
        """As `pull`, with the messages as columns for any Arrow library, without an object for each
        message.

        `columns` names those that are wanted, in order: `queue`, `offset`, `position`, `size`,
        `body`, `tag`, `keys`, `properties` (the caller's own), `message_group`, `message_id`,
        `flags`, `born_at`, `stored_at`, `expires_at` (null: never); None means all. Numbers are
        int64, times ms since the epoch, `body` large_binary, texts large_string (null if there is
        none). An unknown name is a `CallerError`.

        >>> found = store.pull_columns("orders", 0, 0, columns=["offset", "body"])  # doctest: +SKIP
        >>> pyarrow.record_batch(found.columns).num_rows  # doctest: +SKIP
        1024
        """
        self._check_open()
        return pull_columns(
            self._engine.reader,
            self._engine.topics.of_callers(topic),
            queue,
            offset,
            limit,
            max_bytes,
            compile_filter(filter),
            columns,
        )
