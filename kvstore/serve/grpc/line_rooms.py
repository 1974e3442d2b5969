"""The rooms for replies of the door's connections (`serve.replies`).

Invariant: a connection has one room from its first call that asks for it until it is lost.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kvstore.serve.http2.grpc_call import Line
from kvstore.serve.replies.reply_room import ReplyRoom, ReplyRooms

_LOST: Final = " replies"
"""The name among what a lost connection ends: no client has it."""


class LineRooms:
    """See the module. `rooms` are those of the server."""

    def __init__(self, rooms: ReplyRooms) -> None:
        self._rooms = rooms
        self._by_line: dict[Line, ReplyRoom] = {}

    def of(self, line: Line) -> ReplyRoom:
        """The room of a connection."""
        found = self._by_line.get(line)
        if found is None:
            found = self._by_line[line] = ReplyRoom(self._rooms, line.end_untaken)
            line.when_lost[_LOST] = partial(self._lost, line)
        return found

    def _lost(self, line: Line) -> None:
        del self._by_line[line]
