"""Layout: the names of files and folders in an export.

The idea: messages lie where every reader of partitioned Parquet looks. The export's own notes and
files that are not committed lie in folders that begin with `_`, where no reader looks.

Invariants: the names of batches, and of compactions, sort in the order of their making; anything in
`STAGING` may be removed, unless something in `PENDING` names it.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

NOTES: Final = "_kvmq"
CHECKPOINT: Final = f"{NOTES}/checkpoint"
"""Spark's own: how far the stream has come."""
STAGING: Final = f"{NOTES}/staging"
"""Files that are not committed yet, a folder for each batch or compaction."""
PENDING: Final = f"{NOTES}/pending"
"""Manifests that are committed, and may not be carried out yet."""
DONE: Final = f"{NOTES}/done"
"""Manifests that are carried out."""
SCHEMAS: Final = f"{NOTES}/schemas"
SETTINGS: Final = f"{NOTES}/export.json"
RUN: Final = f"{NOTES}/run.json"
REJECTED: Final = "_kvmq_rejected"
"""Messages whose bodies don't fit their topic's schema."""
OUT: Final = "out"
ASIDE: Final = "rejected"
PARQUET: Final = ".parquet"
MANIFEST: Final = ".json"
BATCH: Final = "batch-"
COMPACTION: Final = "compaction-"


def batch_name(batch: int) -> str:
    """The name of a batch of the stream."""
    return f"{BATCH}{batch:020}"


def compaction_name(number: int) -> str:
    """The name of a compaction."""
    return f"{COMPACTION}{number:020}"


def number_of(name: str) -> int:
    """The number of a batch or compaction, by its name or that of its manifest; -1 for a file that
    somebody else has put there.
    """
    digits = name.removesuffix(MANIFEST).rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def schema_name(topic: str) -> str:
    """The file of a topic's pinned schema."""
    return f"{SCHEMAS}/{quote(topic, safe='')}{MANIFEST}"


def staged(name: str, part: str) -> str:
    """Where the files of a batch lie before it is committed."""
    return f"{STAGING}/{name}/{part}"
