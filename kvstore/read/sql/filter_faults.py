"""Reports a fault in a filter's text: the text, the place, the problem and its remedy.

The idea: one sentence, built in one place, for tag and SQL expressions alike. A long text is shown
around the place only.

Invariant: 0 <= position <= length of the text; the length means its end.
"""

from __future__ import annotations

from typing import Final

from kvstore.errors import (
    FilterIllegal,
    shown,
)

LENGTH_MAX: Final = 16 << 10
"""Characters of an expression; a longer one is taken for a mistake, and would fill the caches."""
_SHOWN_MAX: Final = 160
_NEAR: Final = 16


def fault(expression: str, position: int, problem: str) -> FilterIllegal:
    """The error for a fault at a position of an expression."""
    assert 0 <= position <= len(expression), "a fault is inside its text or at its end"
    near = expression[position : position + _NEAR]
    place = f"at character {position}, near {shown(near)}" if near else f"at its end, {position}"
    return FilterIllegal(
        f"filter {_shown(expression, position)!r} is wrong {place}: {problem}",
        expression,
        position,
    )


def check_length(expression: str) -> None:
    """Raises `FilterIllegal` for a text above `LENGTH_MAX`."""
    if len(expression) > LENGTH_MAX:
        problem = (
            f"it has {len(expression)} characters, and {LENGTH_MAX} are allowed; use a shorter "
            "one, or filter in the program"
        )
        raise fault(expression, LENGTH_MAX, problem)


def _shown(expression: str, position: int) -> str:
    if len(expression) <= _SHOWN_MAX:
        return expression
    start = max(0, position - _SHOWN_MAX // 2)
    end = start + _SHOWN_MAX
    before = "..." if start else ""
    after = "..." if end < len(expression) else ""
    return before + expression[start:end] + after
