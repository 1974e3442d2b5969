"""Calls about how far groups are."""

from __future__ import annotations

from kvstore.calls.parts import Parts


class Keeping(Parts):
    """See the module."""

    def commit_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Say that a group wants `offset` of a queue next. A group that is new is made."""
        self._log.check_writable()
        used = self._topics.get(topic)
        self._offsets.check(offset, self._reader.bounds(used.key(queue)).next_offset)
        self._offsets.commit(self._groups.for_commit(group).id, used.id, queue, offset)

    def committed_offset(self, group: str, topic: str, queue: int) -> int | None:
        """The offset a group wants next; None if it never committed one."""
        self._check_open()
        used = self._topics.get(topic)
        bounds = self._reader.bounds(used.key(queue))
        known = self._groups.find(group)
        return None if known is None else self._offsets.get(known.id, used.id, queue, bounds)
