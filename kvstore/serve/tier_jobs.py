"""Tier jobs: the work of tiering that clients ask a server for.

The idea: the packages of this room don't know tiering. The server is given one object by its owner
(`cli.tier.server_worker`), which makes a job of a request; a thread runs it, and its result goes
back as it is.

Invariant: a job is run by one thread; to stop it, also before it has begun, ends it soon, as if the
step under way had not begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Tells = Callable[[str, int, int], None]
"""Takes the name of a step, the amount that is done, and the whole."""


class TierJob(Protocol):
    """One request's work; see the module."""

    def run(self) -> Any:
        """The report, in a thread."""

    def stop(self) -> None:
        """Ends it, and returns when it has ended."""


class TierJobs(Protocol):
    """Makes jobs; see the module."""

    def job(self, operation: Any, policy: Any, arguments: Any, progress: Tells | None) -> TierJob:
        """The job of a request, whose values may be anything; it raises when it runs."""

    def stop(self) -> None:
        """Ends all jobs, and takes no more."""
