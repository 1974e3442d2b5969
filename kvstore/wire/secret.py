"""A secret as a value that does not show itself.

Invariant: no `repr`, `str`, format, error or log line has the text; only `reveal` gives it, and its
callers compute with it.
"""

from __future__ import annotations

from typing import NoReturn


class Secret:
    """A secret text, in memory. Two of them are equal if their texts are."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, to compute with and not to show."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other.reveal()

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret stays in its process: it can't be pickled or copied")
