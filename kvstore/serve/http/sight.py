"""Sight: what a client may see on the admin page.

The idea: a page shows a topic to clients that may consume or administer it, and a group to clients
that may consume for it or administer it. Figures of the store as a whole are for those of them that
may read its metrics as well, and for its administrators, who see all.

Invariants: of a topic or a group out of sight a page shows nothing: no name, message or figure, nor
whether it is there. A total that others are part of is shown to those that see all.
"""

from __future__ import annotations

from typing import NamedTuple

from kvstore.errors import NotAllowed
from kvstore.serve.access.rights import Patterns, Rights, allows, allows_metrics


class Sight(NamedTuple):
    """See the module; made of a client's rights."""

    rights: Rights

    @property
    def is_whole(self) -> bool:
        """Whether it sees all, and may change it."""
        return allows(self.rights, "admin")

    @property
    def has_figures(self) -> bool:
        """Whether it sees figures of the store as a whole."""
        return allows_metrics(self.rights)

    @property
    def is_blind(self) -> bool:
        """Whether there is no topic and no group that it may see. The right to read metrics is for
        programs that read nothing else.
        """
        lists = (self.rights.consume, self.rights.groups, self.rights.admin)
        return all(one == Patterns() for one in lists)

    def topic(self, name: str) -> bool:
        """Whether it sees a topic."""
        return allows(self.rights, "consume", topic=name)

    def group(self, name: str) -> bool:
        """Whether it sees a group."""
        return allows(self.rights, "consume", group=name)

    def require_topic(self, name: str) -> str:
        """The topic's name; `NotAllowed` if it is out of sight."""
        if not self.topic(name):
            raise NotAllowed("this client has no right to see that topic", "consume", topic=name)
        return name

    def require_group(self, name: str) -> str:
        """The group's name; `NotAllowed` if it is out of sight."""
        if not self.group(name):
            raise NotAllowed("this client has no right to see that group", "consume", group=name)
        return name

    def require_figures(self) -> None:
        """`NotAllowed` if it does not see figures of the store as a whole."""
        if not self.has_figures:
            raise NotAllowed(
                "this client has no right to see figures of the whole store; `metrics = true` in "
                "the file of credentials gives it",
                "metrics",
            )
