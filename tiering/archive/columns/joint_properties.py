"""Joint properties: decodes the properties of several groups, in columns, in one pass.

The idea: groups of similar topics begin with the same shape. Their ids and numbers are unpacked
together (see `tiering.archive.columns.batch_columns`), and each group gets its slice.

Invariants: the result is the same as of each group by itself; if one of the groups has several
shapes or is damaged there is no result, and the caller decodes one group after the other to find
the fault and its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from kvstore.errors import ArchiveDamaged
from tiering.archive.columns.batch_columns import RowCounts, Several
from tiering.archive.columns.integers import Column
from tiering.archive.columns.properties import PropertyColumns, read_shapes, size_of, value_names
from tiering.archive.columns.text_columns import DIGITS_MAX, ID_DIGITS, Ids, Numbers, Texts
from tiering.archive.columns.values import (
    ID_PARTS,
    IDS,
    NUMBERS,
    decode_values,
    ids_of,
    read_number_form,
    too_large,
)
from tiering.archive.layout import COLUMNS_FORMAT, DECODED_MAX

_ID_BYTES: Final = ID_DIGITS // 2


def decode_properties_jointly(
    payloads: Sequence[bytes], born: Sequence[Column]
) -> list[PropertyColumns | None]:
    """The properties of groups with these parts, whose records were born at these times. None for a
    group: decode it by itself.
    """
    out: list[PropertyColumns | None] = [None] * len(payloads)
    by_head: dict[bytes, list[int]] = {}
    try:
        for i, payload in enumerate(payloads):
            _, size = read_shapes(payload, len(born[i]))
            by_head.setdefault(payload[:size], []).append(i)
    except ArchiveDamaged:
        return out
    for head, which in by_head.items():
        if len(which) == 1:
            continue
        try:
            found = _decoded(head, [payloads[i] for i in which], [born[i] for i in which])
        except (ArchiveDamaged, IndexError):
            continue
        for i, one in zip(which, found, strict=True):
            out[i] = one
    return out


def _decoded(
    head: bytes, payloads: Sequence[bytes], born: Sequence[Column]
) -> Sequence[PropertyColumns | None]:
    """The properties of groups that begin with the same shape."""
    shapes, _ = read_shapes(head, len(born[0]))
    names = sorted(value_names(shapes[0]))
    none = [None] * len(born)
    if head[0] != COLUMNS_FORMAT or len(shapes) > 1 or len(set(names)) < len(names):
        return none
    if max(map(len, born)) * size_of(shapes[0]) > DECODED_MAX:
        return none
    values = _Values(payloads, born, len(head))
    columns = {name: values.next() for name in names}
    if not values.is_done:
        return none
    return [
        PropertyColumns(
            shapes,
            np.zeros(len(times), np.int64),
            {name: column[i] for name, column in columns.items()},
        )
        for i, times in enumerate(born)
    ]


class _Values(Several):
    """Values by name; in each part they begin behind the given number of bytes."""

    def __init__(self, payloads: Sequence[bytes], born: Sequence[Column], begin: int) -> None:
        super().__init__(payloads)
        self.ats = [at + begin for at in self.ats]
        self._each = born
        self._rows = RowCounts(np.array(list(map(len, born))))
        self._left = [DECODED_MAX] * len(born)
        """Bytes that may still come from each group."""

    def next(self) -> Sequence[Texts]:
        """The values of the next name, group by group. Raises ArchiveDamaged, IndexError."""
        kinds = {self.data[at] for at in self.ats}
        if kinds == {IDS}:
            return self._ids()
        if kinds == {NUMBERS}:
            return self._numbers()
        found = []
        for i, times in enumerate(self._each):
            values, self.ats[i], size = decode_values(self.data, self.ats[i], times, self._left[i])
            found.append(values)
            self._take(i, size)
        return found

    def _ids(self) -> list[Texts]:
        for i, times in enumerate(self._each):
            self.ats[i] += 1
            self._take(i, ID_DIGITS * len(times))
        parts = [self.column(self.every, self._rows) for _ in range(ID_PARTS)]
        found = ids_of(parts, np.concatenate(self._each))
        bounds = self._rows.bounds * _ID_BYTES
        return [Ids(found[a:b]) for a, b in pairwise(bounds.tolist())]

    def _numbers(self) -> list[Texts]:
        forms = []
        for i, times in enumerate(self._each):
            prefix, width, self.ats[i] = read_number_form(
                self.data, self.ats[i] + 1, len(times), self._left[i]
            )
            forms.append((prefix, width))
            self._take(i, (len(prefix) + DIGITS_MAX) * len(times))
        found = self.column(self.every, self._rows)
        each = zip(forms, self._rows.slices(), strict=True)
        return [Numbers(*form, found[some]) for form, some in each]

    def _take(self, i: int, size: int) -> None:
        self._left[i] -= size
        if self._left[i] < 0:
            raise too_large(DECODED_MAX)
