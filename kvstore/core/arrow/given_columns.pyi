"""Columns of an Arrow library, to be put; see given_columns.pyx."""

from typing import final

from kvstore.core.put_values import Message

@final
class GivenColumns:
    """The rows of an Arrow record batch, or of all batches of a stream, which is read to its end.

    There is a row for each message, and columns by the names of `Message`'s fields but for the
    topic: `body` (binary or string), and if wanted `queue`, `flags` (integers), `tag`,
    `message_group`, `message_id`, `dedup_id` (strings), `keys` (lists of strings, or one string
    each), `properties` (maps of strings to strings), `born_at`, `deliver_at` and `expires_at` (ms,
    or timestamps; finer ones are rounded down). Each may be in its large form, as views, sliced, or
    all null; texts may be dictionaries. A null stands for the field's default.
    """

    count: int

    def __init__(self, batch: object) -> None:
        """`batch` has `__arrow_c_array__` or `__arrow_c_stream__`. Raises MessageIllegal for
        anything else, for a column that is unknown, of another type or missing, and for arrays that
        contradict themselves.
        """

    def __len__(self) -> int:
        """The number of rows."""

    def message(self, topic: str, row: int) -> Message:
        """A row as a message, to see what is wrong with it. Text that is no UTF-8 has halves of
        surrogate pairs. Raises MessageIllegal for a row that its columns do not have, and
        IndexError.
        """
