"""Tail: the end of an archive, which says where every section is.

The idea: the trailer, of fixed size, says where the footer and all small sections begin; one read
gets them. The footer's table says where each section is.

Invariants: trailer and footer have a crc32c each; sections fill the file from the end of the blocks
to the footer, so that no two overlap and nothing is outside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple, Protocol

import google_crc32c

from kvstore.errors import ArchiveDamaged, FormatError, FormatTooNew, FormatTooOld
from kvstore.files import Files
from tiering.archive.coder import Coder
from tiering.archive.layout import (
    CHUNKED,
    FOOTER_ROW,
    FORMAT_VERSION,
    HEADER_SIZE,
    OPENING_READ,
    TRAILER,
    TRAILER_COVERED,
    TRAILER_MAGIC,
    TRAILER_SIZE,
    Section,
)

PLAIN: Final = Coder()
"""Decodes the parts of every archive."""


class Source(Protocol):
    """The bytes of an archive, wherever they are; reads may raise any error."""

    name: str
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`."""


class FileSource:
    """An archive in a local file."""

    def __init__(self, path: Path, files: Files) -> None:
        self.name = str(path)
        self.size = files.size(path) or 0
        self._path = path
        self._files = files

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`."""
        return self._files.read(self._path, offset, size)


class SectionExtent(NamedTuple):
    """The place of a section."""

    at: int
    size: int
    chunks: int


class Tail(NamedTuple):
    """The sections of an archive, and the bytes of those at its end that were read."""

    sections: dict[Section, SectionExtent]
    raw: dict[Section, bytes]


def read_tail(source: Source, *, lazily: bool = False) -> Tail:
    """Reads everything behind blocks and indexes, in at most two reads; `lazily`: in one, so that
    of large sections only the places are known. Raises ArchiveDamaged, FormatTooNew, FormatTooOld.
    """
    if source.size < HEADER_SIZE + TRAILER_SIZE:
        raise ArchiveDamaged(f"{source.name}: {source.size} bytes are no archive", source.name)
    begin = max(source.size - OPENING_READ, 0)
    end = read_exactly(source, begin, source.size - begin)
    footer_size, size = _trailer(source, end)
    tail_at = source.size - TRAILER_SIZE - size
    if tail_at < begin and not lazily:
        end = read_exactly(source, tail_at, begin - tail_at) + end
        begin = tail_at
    try:
        sections = _find_sections(end, footer_size, source.size, tail_at)
    except (FormatError, ArchiveDamaged) as error:
        raise ArchiveDamaged(f"{source.name}: its end: {error}", source.name) from None
    raw = {
        kind: end[place.at - begin : place.at - begin + place.size]
        for kind, place in sections.items()
        if place.at >= begin and kind not in CHUNKED
    }
    return Tail(sections, raw)


def read_exactly(source: Source, offset: int, size: int) -> bytes:
    """Exactly `size` bytes; ArchiveDamaged if the source has fewer."""
    data = source.read(offset, size)
    if len(data) != size:
        raise ArchiveDamaged(
            f"{source.name}: ends within the {size} bytes at {offset}", source.name
        )
    return data


def _trailer(source: Source, end: bytes) -> tuple[int, int]:
    """Sizes of the footer, and of everything that `read_tail` reads but the trailer."""
    footer, size, version, _, crc, magic = TRAILER.unpack(end[-TRAILER_SIZE:])
    if magic != TRAILER_MAGIC:
        raise ArchiveDamaged(
            f"{source.name}: is no archive, or its end is missing: it does not end with "
            f"{TRAILER_MAGIC.decode()}", source.name,
        )  # fmt: skip
    covered = end[-TRAILER_SIZE : TRAILER_COVERED - TRAILER_SIZE]
    if google_crc32c.value(covered) != crc:
        raise ArchiveDamaged(f"{source.name}: the trailer's crc32c differs", source.name)
    if version > FORMAT_VERSION:
        raise FormatTooNew(
            f"{source.name}: is an archive of format {version}; this version reads up to "
            f"{FORMAT_VERSION}", version, FORMAT_VERSION, source.name,
        )  # fmt: skip
    if version < FORMAT_VERSION:
        raise FormatTooOld(
            f"{source.name}: is an archive of format {version}, from before 1.0; this version "
            f"reads {FORMAT_VERSION} only. Read it with the version that wrote it, and put its "
            "messages anew", version, FORMAT_VERSION, source.name,
        )  # fmt: skip
    if not footer <= size <= source.size - HEADER_SIZE - TRAILER_SIZE:
        name = source.name
        raise ArchiveDamaged(f"{name}: {source.size} bytes are not the whole archive", name)
    return footer, size


def _find_sections(
    end: bytes, footer_size: int, file_size: int, tail_at: int
) -> dict[Section, SectionExtent]:
    """The places of the sections, from the last bytes of the file. Raises FormatError,
    ArchiveDamaged.
    """
    if footer_size + TRAILER_SIZE > len(end):
        raise FormatError(f"a footer of {footer_size} bytes is too long")
    payload = PLAIN.decode(end[-TRAILER_SIZE - footer_size : -TRAILER_SIZE])
    sections = _sections(payload, file_size - TRAILER_SIZE - footer_size)
    for kind, place in sections.items():
        if (kind in CHUNKED) != (place.at < tail_at):
            raise FormatError(f"section {kind.name} lies where it can't")
    if Section.MANIFEST not in sections or Section.DIRECTORY not in sections:
        raise FormatError("there is no manifest, or no directory")
    return sections


def _sections(footer: bytes, footer_at: int) -> dict[Section, SectionExtent]:
    """The sections in the footer's table, which must fill the file up to the footer."""
    if not footer or len(footer) % FOOTER_ROW.size:
        raise FormatError("the footer is no table")
    rows = list(FOOTER_ROW.iter_unpack(footer))
    ends = [at + size for _, at, size, _ in rows]
    if rows[0][1] < HEADER_SIZE or [row[1] for row in rows[1:]] + [footer_at] != ends:
        raise FormatError("sections do not lie one behind the other")
    known = frozenset(Section)
    return {Section(kind): SectionExtent(*where) for kind, *where in rows if kind in known}
