"""Portions: the sizes in which work is dealt out to tasks that run side by side.

The idea: all portions are equal, but the last ones are smaller and smaller. So a task that begins
late does not keep the others waiting, whatever the number of tasks.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 4
"""A portion is at most this part of the rest, and at least this part of the largest portion."""


def portion(left: int, most: int) -> int:
    """The next portion of the `left` work, of at most `most`; 1 or more."""
    return max(min(max(left, most) // _SHARE, most), 1)
