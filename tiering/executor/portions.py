"""Portions: how much of some work each of those has who do it side by side.

The idea: all have the same, but the last portions are smaller and smaller, so that whoever begins
one late does not keep the others waiting; nobody needs to know how many there are.
"""

from __future__ import annotations

from typing import Final

_SHARE: Final = 4
"""What part of the rest a portion is at most, and what part of the largest one at least."""


def portion(left: int, most: int) -> int:
    """The next portion of what is `left`, of at most `most`; 1 or more."""
    return max(min(max(left, most) // _SHARE, most), 1)
