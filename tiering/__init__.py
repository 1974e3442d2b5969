"""Tiering: sealed segments as compact archives that read like the store.

    import kvstore, tiering

    with kvstore.open("data") as store:
        policy = tiering.Policy(hot_for=3600, warm_for=7 * 86400, warm="archive")
        with tiering.Worker(store, policy) as worker:
            worker.run_once()

Reading is the store's own: its calls don't change when a message is in an archive.

In here: the public names of tiering, and its rooms. Not in here: the store, which is `kvstore`.
Begin with `operations.worker`, then `worker`. Its rooms may import `config`, `clock`, `core`,
`errors`, `files`, `index.archived`, `index.keys`, `opening.restoring`, `opening.viewing`, `process`
and `record` of `kvstore`; decision 0014 has the reasons.
"""

from __future__ import annotations

from kvstore.errors import (
    ArchiveDamaged,
    ArchiveMissing,
    ArchiveUnavailable,
    KeyDestroyed,
    KeyMissing,
)
from tiering.errors import (
    AttachConflict,
    ExtraMissing,
    FileRefused,
    NothingToRestore,
    ObjectExists,
    ObjectNotFound,
    PlaceDenied,
    PlaceError,
    PlaceFull,
    PlaceIllegal,
    PlaceUnavailable,
    PlaceUnsuitable,
    PolicyIllegal,
    StoresAmbiguous,
    TargetNotEmpty,
    TieringBusy,
    TieringStopped,
)
from tiering.keys.crypto import KeyProvider, TopicKey
from tiering.keys.key_file import KeyFile
from tiering.operations.attach import AttachReport, attach
from tiering.operations.erase import DestroyReport, ErasurePlan, ErasureReport
from tiering.operations.inspection import Together, held_together
from tiering.operations.restore import RestoreProblem, RestoreReport, restore
from tiering.operations.served_worker import ServedWorker
from tiering.operations.worker import ArchiveInfo, Worker
from tiering.policy.plan import Plan
from tiering.policy.policy import Policy, Prices, TierPrice
from tiering.worker.audit import AuditProblem, AuditReport, Orphan
from tiering.worker.runs import RunReport

__all__ = [
    "ArchiveDamaged",
    "ArchiveInfo",
    "ArchiveMissing",
    "ArchiveUnavailable",
    "AttachConflict",
    "AttachReport",
    "AuditProblem",
    "AuditReport",
    "DestroyReport",
    "ErasurePlan",
    "ErasureReport",
    "ExtraMissing",
    "FileRefused",
    "KeyDestroyed",
    "KeyFile",
    "KeyMissing",
    "KeyProvider",
    "NothingToRestore",
    "ObjectExists",
    "ObjectNotFound",
    "Orphan",
    "PlaceDenied",
    "PlaceError",
    "PlaceFull",
    "PlaceIllegal",
    "PlaceUnavailable",
    "PlaceUnsuitable",
    "Plan",
    "Policy",
    "PolicyIllegal",
    "Prices",
    "RestoreProblem",
    "RestoreReport",
    "RunReport",
    "ServedWorker",
    "StoresAmbiguous",
    "TargetNotEmpty",
    "TierPrice",
    "TieringBusy",
    "TieringStopped",
    "Together",
    "TopicKey",
    "Worker",
    "attach",
    "held_together",
    "restore",
]
