"""Leaving: which segments stay in the log because messages wait in them.

The idea: before a segment leaves, its messages that wait are put to the log's end
(docs/decisions/0020). A segment full of them frees as much as that writes, so it would be written
again and again, for nothing. So a segment leaves only if the segments from it on to some sealed one
hold at least as many other bytes as bytes that wait: as these leave one after the other, no more is
moved than is freed. The bytes are counted in the rows of messages that wait. The count is kept: in
a sealed segment they only grow fewer.

Invariants: all that is ever moved is no more than what was put; the log has no more than the limits
of its retention, or twice the bytes that wait, and the segments that are not sealed. A look costs
nothing with the messages that wait, unless a segment was sealed or an eighth of them ended since
they were counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kvstore.timing.timer_rows import TimerRows

_ENDED: Final = 8
"""A count is made anew when one of so many messages waits no more."""


def stuck_segments(sealed: Sequence[int], waiting: Mapping[int, int], size: int) -> frozenset[int]:
    """Those of the sealed segments, rising, that stay, given the bytes that wait in each; one that
    is not in `waiting` counts as full of them. Pure.
    """
    stuck = set[int]()
    gain = 0
    for number in reversed(sealed):
        # The most that the segments from this one on to some other free, less what they write.
        gain = size - 2 * waiting.get(number, size) + max(gain, 0)
        if gain < 0:
            stuck.add(number)
    return frozenset(stuck)


class _Counted(NamedTuple):
    """The bytes that wait in each segment, and the messages that waited when they were counted."""

    waiting: Mapping[int, int]
    messages: int


class Leaving:
    """Says which segments stay; see the module."""

    def __init__(self, rows: Sequence[TimerRows], segment_size: int) -> None:
        self._rows = rows
        self._segment_size = segment_size
        self._counted = _Counted({}, 0)

    def stuck(self, sealed: Sequence[int]) -> frozenset[int]:
        """Those of the sealed segments, rising, that stay."""
        counted = self._counted
        stuck = stuck_segments(sealed, counted.waiting, self._segment_size)
        if not stuck:
            return stuck
        messages = sum(sum(rows.counts().values()) for rows in self._rows)
        if (counted.messages - messages) * _ENDED < counted.messages and all(
            number in counted.waiting for number in sealed
        ):
            return stuck
        waiting = dict.fromkeys(sealed, 0)
        for rows in self._rows:
            for segment, size in rows.bytes_by_segment(self._segment_size).items():
                if segment in waiting:
                    waiting[segment] += size
        self._counted = _Counted(waiting, messages)
        return stuck_segments(sealed, waiting, self._segment_size)
