"""Tiering: sealed segments as compact archives that read like the store.

    import kvstore, tiering

    with kvstore.open("data") as store:
        policy = tiering.Policy(hot_for=3600, warm_for=7 * 86400, warm="archive")
        with tiering.Worker(store, policy) as worker:
            worker.run_once()

Reading is the store's own: its calls don't change when a message is in an archive.
"""

from __future__ import annotations

from kvstore.errors import ArchiveDamaged, ArchiveMissing, ArchiveUnavailable, KeyDestroyed
from tiering.archive.crypto import KeyProvider, TopicKey
from tiering.archive.keyfile import KeyFile
from tiering.audit import AuditProblem, AuditReport, Orphan
from tiering.errors import (
    ExtraMissing,
    ObjectExists,
    ObjectNotFound,
    PlaceDenied,
    PlaceError,
    PlaceFull,
    PlaceIllegal,
    PlaceUnavailable,
    PlaceUnsuitable,
    PolicyIllegal,
    TieringBusy,
    TieringStopped,
)
from tiering.plan import Plan
from tiering.policy import Policy
from tiering.prices import Prices, TierPrice
from tiering.worker import ArchiveInfo, RunReport, Worker

__all__ = [
    "ArchiveDamaged",
    "ArchiveInfo",
    "ArchiveMissing",
    "ArchiveUnavailable",
    "AuditProblem",
    "AuditReport",
    "ExtraMissing",
    "KeyDestroyed",
    "KeyFile",
    "KeyProvider",
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
    "RunReport",
    "TierPrice",
    "TieringBusy",
    "TieringStopped",
    "TopicKey",
    "Worker",
]
