"""The tiering worker of a server: it runs by itself if there is a policy, and does clients' jobs.

The idea: a store has one worker at a time. With a policy that is the server's own, for as long as
the server lives; without one each job makes its own, by the policy that its client sends.

Invariants: a job by another policy than the server's is refused (`TieringBusy`); when the server
ends, jobs under way are stopped first, so that their clients still get an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import kvstore
from kvstore.errors import CallerError, shown
from kvstore.serve.tier_jobs import Tells

if TYPE_CHECKING:
    from tiering.operations.worker import Worker
    from tiering.policy.policy import Policy

_OPERATIONS: Final = frozenset({
    "archives", "plan", "verify", "run_once", "run_and_merge", "merge", "part", "compact",
    "reencrypt", "erasure_plan", "erase", "destroy_key",
})  # fmt: skip
_ATTACH: Final = "attach"


class ServerWorker:
    """See the module, and `serve.tier_jobs.TierJobs`; it is entered while the server runs."""

    def __init__(self, store: kvstore.Store, policy: Policy | None) -> None:
        self.store = store
        self._policy = policy
        self._own: Worker | None = None
        self._jobs: set[_Job] = set()
        self._lock = threading.Lock()
        self._is_stopped = False

    def __enter__(self) -> Self:
        if self._policy is not None:
            from tiering.operations.worker import Worker

            self._own = Worker(self.store, self._policy)
            self._own.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_stopped:
            self.stop()

    def job(self, operation: Any, policy: Any, arguments: Any, progress: Tells | None) -> _Job:
        """See `serve.tier_jobs.TierJobs`."""
        return _Job(self, operation, policy, arguments, progress)

    def begin(self, job: _Job) -> list[_Job]:
        """Notes that a job begins; the jobs before it that are told to stop, and have not ended."""
        with self._lock:
            if self._is_stopped:
                job.is_stopped.set()
            ending = [one for one in self._jobs if one.is_stopped.is_set()]
            self._jobs.add(job)
        return ending

    def end(self, job: _Job) -> None:
        """Notes that it has ended."""
        with self._lock:
            self._jobs.discard(job)
        job.has_ended.set()

    def worker_of(self, given: Any, progress: Tells | None) -> tuple[Worker, bool]:
        """The worker for a client's policy, and whether it is for one job alone."""
        from tiering.errors import TieringBusy
        from tiering.operations.worker import Worker

        policy = None if given is None else _read_policy(given)
        own = self._own
        if own is None:
            return Worker(self.store, policy or _no_policy(), progress=progress), True
        if policy not in (None, own.policy):
            raise TieringBusy(
                "the server has a worker by another policy (kvmq serve --policy FILE); name that "
                "file, or none, or start the server with this one"
            )
        return own, False

    def stop(self) -> None:
        """See `serve.tier_jobs.TierJobs`."""
        with self._lock:
            self._is_stopped = True
            jobs = list(self._jobs)
        for job in jobs:
            job.stop()
        if self._own is not None:
            self._own.stop()


class _Job:
    """See `serve.tier_jobs.TierJob`."""

    def __init__(
        self, server: ServerWorker, operation: Any, policy: Any, arguments: Any,
        progress: Tells | None,
    ) -> None:  # fmt: skip
        self.is_stopped = threading.Event()
        self.has_ended = threading.Event()
        self._server = server
        self._asked = operation, policy, arguments
        self._progress = progress
        self._worker: Worker | None = None

    def run(self) -> Any:
        ending = self._server.begin(self)
        try:
            # Two jobs never wait for each other: each was told to stop behind those it waits for.
            self._check()
            for job in ending:
                job.has_ended.wait()  # its client may have come back as this one's
            return self._run(*self._asked)
        finally:
            self._server.end(self)

    def _run(self, operation: Any, policy: Any, arguments: Any) -> Any:
        import tiering

        if not isinstance(arguments, dict) or operation not in _OPERATIONS | {_ATTACH}:
            raise CallerError(f"a server's worker has no call {shown(operation)}")
        if operation == _ATTACH:
            return tiering.attach(self._server.store, progress=self._told, **arguments)
        worker, is_its_own = self._server.worker_of(policy, self._progress)
        try:
            if is_its_own:
                self._worker = worker
            self._check()
            return getattr(worker, operation)(**arguments)
        finally:
            if is_its_own:
                worker.stop()

    def _check(self) -> None:
        from tiering.errors import TieringStopped

        if self.is_stopped.is_set():
            raise TieringStopped("the job was told to stop")

    def _told(self, what: str, done: int, total: int) -> None:
        """The progress of work that no worker stops."""
        self._check()
        if self._progress is not None:
            self._progress(what, done, total)

    def stop(self) -> None:
        self.is_stopped.set()
        worker = self._worker
        if worker is not None:
            worker.stop()


def _read_policy(given: Any) -> Policy:
    import msgspec

    from tiering.errors import PolicyIllegal
    from tiering.policy.policy import Policy

    if not isinstance(given, Mapping):
        raise PolicyIllegal(f"the policy is {shown(given)}; it must be a map of its fields")
    try:
        return msgspec.convert(given, Policy)
    except msgspec.ValidationError as e:
        raise PolicyIllegal(f"the policy can't be used: {e}") from e


def _no_policy() -> Policy:
    from tiering.policy.policy import Policy

    return Policy()
