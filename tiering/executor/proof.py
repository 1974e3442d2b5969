"""Proves that an archive gives back the records that it was made of, byte for byte.

Invariant: the archive is read from the disk, all of it, in its own order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ArchiveDamaged
from kvstore.files import Files
from tiering.archive.archive_reader import Archive
from tiering.archive.columns.records import slices
from tiering.archive.tail import FileSource
from tiering.keys.crypto import KeyProvider

if TYPE_CHECKING:
    from kvstore.record.check import Buffer

I64 = NDArray[np.int64]


def prove(
    path: Path, files: Files, keys: KeyProvider | None, buffer: Buffer, starts: I64, sizes: I64,
    *, rows: I64, stays: str,
) -> None:  # fmt: skip
    """Reads an archive back, and compares each record with the one in the buffer; `rows` says which
    of `starts` and `sizes` are its records', in its order. `stays` says, for the error's text, what
    is unchanged if they differ. Raises ArchiveDamaged.
    """
    archive = Archive.open(FileSource(path, files), keys=keys)
    done = 0
    for group in archive.groups():
        mine = rows[done : done + group.count]
        begins = starts[mine]
        if group.records() != slices(buffer, begins, begins + sizes[mine]):
            raise ArchiveDamaged(
                f"what block {group.number} of {path} and those with it give back is not what was "
                f"put into it; {stays}",
                str(path),
                group.number,
            )
        done += group.count
    if done != len(rows):
        raise ArchiveDamaged(f"{path} lacks records that were put into it; {stays}", str(path))
