"""The version of the index's layouts: which of them this kvmq opens."""

from __future__ import annotations

from kvstore.errors import FormatTooNew, FormatTooOld, IndexDamaged
from kvstore.index.families import Families
from kvstore.index.keys import FORMAT, FORMAT_VERSION, META, U32


def check_format(families: Families, *, to_rebuild: bool) -> None:
    """Raise `FormatTooNew` if a newer version wrote this index, `FormatTooOld` for one that
    is to be rebuilt first.
    """
    found = families.get(META, FORMAT)
    if found is None:
        raise IndexDamaged(
            f"{families.path} has no format version; `kvmq rebuild` makes the index anew"
        )
    version = U32.unpack(found)[0]
    if version > FORMAT_VERSION:
        raise FormatTooNew(
            f"{families.path} has format {version}, this version of kvmq reads up to "
            f"{FORMAT_VERSION}; use a newer kvmq",
            version,
            FORMAT_VERSION,
        )
    if version < FORMAT_VERSION and not to_rebuild:
        raise FormatTooOld(
            f"{families.path} has format {version}, this version of kvmq reads "
            f"{FORMAT_VERSION}; `kvmq rebuild {families.path.parent}` makes it anew from "
            "the log: nothing is lost",
            version,
            FORMAT_VERSION,
        )
