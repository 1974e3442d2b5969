"""Lazily: an archive that is opened for its manifest and directory, without what else its end has.

The idea: filter and fences are most of an archive's end, and most of those who open thousands of
archives ask neither. So only the last bytes are read at once, which have all that is small; the
rest is read when somebody needs it, section by section, and not kept as bytes.

Invariant: such an archive gives what any other gives; it holds no more than `OPENING_READ` bytes
besides what was decoded.
"""

from __future__ import annotations

from tiering.archive.crypto import KeyProvider
from tiering.archive.layout import OPENING_READ
from tiering.archive.reader import Archive, Source
from tiering.archive.tail import read_exactly, tail_begin


class _Tail:
    """The end of a source, of which the last bytes are at hand."""

    def __init__(self, source: Source) -> None:
        self._source = source
        begin = max(source.size - OPENING_READ, 0)
        self._last = read_exactly(source, begin, source.size - begin)
        self._at = tail_begin(source, self._last)
        self._last = self._last[max(self._at - begin, 0) :]
        self.name = source.name
        self.size = source.size - self._at

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset` of the end."""
        at = offset - (self.size - len(self._last))
        if at >= 0:
            return self._last[at : at + size]
        return self._source.read(self._at + offset, size)


def open_lazily(source: Source, *, keys: KeyProvider | None = None) -> Archive:
    """The archive of a source. Raises as `Archive.open` does."""
    return Archive.open(source, keys=keys, tail=_Tail(source))
