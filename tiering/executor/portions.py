"""Portions: the sizes in which work is dealt out to tasks that run side by side.

The idea: all portions are equal, but the last ones are smaller and smaller. So a task that begins
late does not keep the others waiting, and nobody needs to know how many tasks there are.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 4
"""What part of the rest a portion is at most, and what part of the largest one at least."""


def portion(left: int, most: int) -> int:
    """The next portion of the `left` work, of at most `most`; 1 or more."""
    return max(min(max(left, most) // _SHARE, most), 1)
