"""The worker of a served store, for a client: the server's process does the work.

The idea: the calls of `Worker`, each of which is one request; the policy goes with it, and the
report comes back as the same type. A server that runs a worker by a policy of its own
(`kvmq serve --policy`) does the work by that one.

Invariant: results and errors are those of `Worker`; of two jobs at a time one is `TieringBusy`.
"""

# ruff: noqa: D102  # `Worker` documents them

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import msgspec

from tiering.catalog.catalog import ArchiveInfo
from tiering.errors import PolicyIllegal, TieringStopped
from tiering.merge.merge import TARGET_BYTES
from tiering.operations.attach import AttachReport
from tiering.operations.erase import DestroyReport, ErasurePlan, ErasureReport
from tiering.policy.plan import Plan
from tiering.policy.policy import Policy
from tiering.worker.audit import AuditReport
from tiering.worker.runs import RunReport
from tiering.worker.store_protocols import Progress

T = TypeVar("T")


class ServedStore(Protocol):
    """See `kvstore.ServedStore`."""

    def tier(
        self,
        operation: str,
        policy: Mapping[str, Any] | None,
        arguments: Mapping[str, Any],
        *,
        progress: Progress | None = None,
    ) -> Any: ...


class ServedWorker:
    """The calls of `Worker` on a store that another process serves, but `start`: a server that is
    started with a policy works by itself.

    >>> with kvstore.connect("data") as store:  # doctest: +SKIP
    ...     tiering.ServedWorker(store, Policy(hot_for=60, warm="/srv/archive")).run_once()

    A relative place in `policy` is in the store's folder. Without a policy the work is done by that
    of the server; one that has none can do only what moves nothing. Raises `TieringBusy` if the
    server runs a worker by another policy, or another job is under way there. Keys and settings of
    places are the server's own. A job whose caller is interrupted, or goes away, is stopped.
    """

    def __init__(
        self, store: ServedStore, policy: Policy | None = None, *, progress: Progress | None = None
    ) -> None:
        if policy is not None and not isinstance(policy, Policy):
            raise PolicyIllegal(f"the policy is {policy!r}; it must be a tiering.Policy")
        self.policy = policy
        self._is_busy = False
        self._is_stopped = False
        self._store = store
        self._progress = progress

    def _do(self, operation: str, kind: type[T], **arguments: Any) -> T:
        policy = None if self.policy is None else msgspec.to_builtins(self.policy)
        self._is_busy = True
        try:
            found = self._store.tier(operation, policy, arguments, progress=self._progress)
        except KeyboardInterrupt:
            if not self._is_stopped:
                raise
            raise TieringStopped("the job was told to stop; what it was doing is undone") from None
        finally:
            self._is_busy = False
        return msgspec.convert(found, kind)

    def stop(self) -> None:
        """Ends the call under way with `TieringStopped`; to be called by a signal's handler in the
        thread of that call.
        """
        self._is_stopped = True
        if self._is_busy:
            raise KeyboardInterrupt

    def archives(self) -> list[ArchiveInfo]:
        return self._do("archives", list[ArchiveInfo])

    def plan(self, *, ratio: float | None = None, read_share: float = 0.0) -> Plan:
        return self._do("plan", Plan, ratio=ratio, read_share=read_share)

    def verify(self, *, remove_orphans: bool = False) -> AuditReport:
        return self._do("verify", AuditReport, remove_orphans=remove_orphans)

    def run_once(self) -> RunReport:
        return self._do("run_once", RunReport)

    def run_and_merge(self) -> RunReport:
        return self._do("run_and_merge", RunReport)

    def merge(self, target_bytes: int = TARGET_BYTES) -> RunReport:
        return self._do("merge", RunReport, target_bytes=target_bytes)

    def part(self, topic: str) -> RunReport:
        return self._do("part", RunReport, topic=topic)

    def compact(self, topic: str | None = None) -> RunReport:
        return self._do("compact", RunReport, topic=topic)

    def reencrypt(self, topic: str | None = None) -> RunReport:
        return self._do("reencrypt", RunReport, topic=topic)

    def erasure_plan(
        self, *, topic: str | None = None, key: str | None = None, before: int | None = None,
        everywhere: bool = False,
    ) -> ErasurePlan:  # fmt: skip
        wanted = {"topic": topic, "key": key, "before": before, "everywhere": everywhere}
        return self._do("erasure_plan", ErasurePlan, **wanted)

    def erase(
        self, *, topic: str | None = None, key: str | None = None, before: int | None = None,
        everywhere: bool = False,
    ) -> ErasureReport:  # fmt: skip
        wanted = {"topic": topic, "key": key, "before": before, "everywhere": everywhere}
        return self._do("erase", ErasureReport, **wanted)

    def destroy_key(self, topic: str) -> DestroyReport:
        return self._do("destroy_key", DestroyReport, topic=topic)

    def attach(
        self, source: str, *, topics: Sequence[str] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> AttachReport:  # fmt: skip
        """See `tiering.attach`; a relative `source` is in the store's folder."""
        wanted = {"topics": topics, "options": options}
        return self._do("attach", AttachReport, source=source, **wanted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept here."""
