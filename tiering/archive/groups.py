"""Groups: all groups of an archive side by side, for a caller that reads many of them.

The idea: a `Directory` takes few bytes, and finds one block by searching. A caller that goes
through a whole archive knows which group is next, and takes slices of plain columns.

Invariant: groups and directory give the same answer about a group.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tiering.archive.columns.integers import bounds_of
from tiering.archive.columns.packed import I64
from tiering.archive.layout import HEADER_SIZE
from tiering.archive.lookup.directory import DirectoryRows, GroupExtent, Members


class Groups:
    """The groups of an archive; `rows` is its whole directory."""

    def __init__(self, rows: DirectoryRows) -> None:
        self.rows = rows
        fixed, properties, bodies = rows.part_sizes
        self._ats = (bounds_of(fixed + properties + bodies) + HEADER_SIZE).tolist()
        self._sizes = list(zip(fixed.tolist(), properties.tolist(), bodies.tolist(), strict=True))
        self._firsts = np.searchsorted(rows.groups, np.arange(len(fixed) + 1)).tolist()

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: int) -> GroupExtent:
        rows = self.rows
        first, stop = self._firsts[number], self._firsts[number + 1]
        members = Members(
            first,
            rows.topics[first:stop].tolist(),
            rows.queues[first:stop].tolist(),
            rows.messages[first:stop],
            rows.first_offset[first:stop],
            rows.last_offset[first:stop],
        )
        return GroupExtent(self._ats[number], self._sizes[number], members)

    def __iter__(self) -> Iterator[GroupExtent]:
        return map(self.__getitem__, range(len(self)))

    def having(self, blocks: I64) -> Iterator[tuple[I64, GroupExtent]]:
        """The groups of some blocks, whose numbers rise, each group with its blocks among them."""
        of = self.rows.groups[blocks]
        for mine in np.split(blocks, np.flatnonzero(np.diff(of)) + 1):
            if len(mine):
                yield mine, self[int(self.rows.groups[mine[0]])]
