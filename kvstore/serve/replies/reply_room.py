"""Room for replies: how much memory of a server the replies to one connection may take.

The idea: a reply is held from the moment its messages are read until its client has it. A call
whose reply may be large asks the room of its connection first, says what the reply may weigh, and
begins when there is so much; others wait behind it, in order. Replies of up to `SHARE` are made
side by side: 15, or 64 where the last ones were small. One that may weigh more is made alone, so
that each has room in the end. A pop can't say what it will find, and most find little: it looks
while the room is not full, and what it found is held from then on.

All rooms are one for the server: beyond `HELD_MAX` bytes the connection that holds most ends, and
until it has, no read and no pop begins. So clients that read nothing cost the server no more.

Invariants:

- A connection holds `ROOM` bytes, and beside them only replies that began to be made before it was
  full: a large one, those of `LOOKS` pops, and where small ones were usual 64 of a share.
- Calls whose replies are small (puts, acks and so on) ask for no room, and wait for none.
- `LARGE_MAX` large replies are made at a time in a server. Connections get these places in the
  order in which they asked: each waits for the making of others' replies, for no other's client.
- All connections of a server hold `HELD_MAX` bytes at most, and replies that began before; that
  counts a reply twice while its frame is made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

ROOM: Final = 64 << 20
"""Bytes of replies that a connection holds when further ones have to wait."""
SHARE: Final = (4 << 20) + (256 << 10)
"""Bytes of a reply that is made beside others: a message of the usual greatest size, and all that
belongs to it.
"""
REPLY_BYTES: Final = 256 << 20
"""Bytes of the messages of a reply, at most. Pops that could not have more are not told so: the
store makes these faster.
"""
ASKED_BYTES: Final = 64 << 20
"""Bytes of messages for which the local protocol's door asks where a reply could have more than
`REPLY_BYTES`.
"""
_SMALL: Final = 1 << 20
_USUAL: Final = 16
"""Behind so many replies below `_SMALL`, a read of up to a share takes no more than that."""
_LOST: Final = " replies"
"""The name among what a lost connection ends; no client has such a name."""
LOOKS: Final = 2
"""Pops of one connection that read messages at a time."""
LARGE_MAX: Final = 2
HELD_MAX: Final = 768 << 20
"""Bytes that a server holds for all connections: the largest reply with its frame, and 256 MiB."""


class RoomyLine(Protocol):
    """A connection of a door that has no sessions."""

    when_lost: dict[str, Callable[[], None]]
    """Called when the connection is gone, by names that its users chose."""

    def end_held(self) -> None:
        """Ends it, because the server holds too much for it."""


class Turn:
    """A call that asked for room. `begin` is called with this when there is some; from then on the
    room has less, until `end`.
    """

    __slots__ = ("_begin", "_room", "has_begun", "is_over", "takes", "weight")

    def __init__(self, room: ReplyRoom, weight: int, begin: Callable[[Turn], None]) -> None:
        self._room = room
        self.weight = weight
        self.takes = 0
        """The part of the room that it has while its reply is made."""
        self._begin: Callable[[Turn], None] | None = begin
        self.has_begun = False
        self.is_over = False

    @property
    def is_large(self) -> bool:
        """Whether its reply is made alone."""
        return self.weight > SHARE

    def run(self) -> None:
        """Calls `begin`."""
        self.has_begun = True
        begin, self._begin = self._begin, None  # it knows the call, and so the reply
        assert begin is not None, "a turn begins once"
        begin(self)

    def end(self) -> None:
        """The reply is made, and held if it is large; or nobody waits for it any more."""
        if not self.is_over:
            self.is_over = True
            self._room.ended(self)


class ReplyRoom:
    """The room of one connection; see the module. `found` and `is_full` are for any thread, the
    rest for the loop's. `give_up` ends the connection.
    """

    def __init__(self, rooms: ReplyRooms, give_up: Callable[[], None]) -> None:
        self.held = 0
        """Bytes of replies that are made, and that the client does not have yet."""
        self.give_up = give_up
        self.looks = threading.BoundedSemaphore(LOOKS)
        """Taken around each look of a pop."""
        self.expects_large = False
        """Whether the last pull that might have had a large reply had one."""
        self._rooms = rooms
        self._making = 0
        """The bytes that replies up to `SHARE` take while they are made."""
        self._small = 0
        """How many of the last replies were small."""
        self._has_large = False
        self._turns: deque[Turn] = deque()
        self._goes_on = False
        self._found = 0
        """Bytes that looks have found and the loop has not heard of."""

    # --- calls that say what their replies may weigh ---

    def ask(self, weight: int, begin: Callable[[Turn], None]) -> Turn:
        """Asks for room; `begin` may be called before this returns."""
        turn = Turn(self, weight, begin)
        self._turns.append(turn)
        self.go_on()
        return turn

    def go_on(self) -> None:
        """Lets the calls begin for which there is room."""
        turns = self._turns
        if self._goes_on:
            return  # within `begin`, and the loop below looks again
        self._goes_on = True
        try:
            self._begin_turns(turns)
        finally:
            self._goes_on = False

    def _begin_turns(self, turns: deque[Turn]) -> None:
        while turns:
            turn = turns[0]
            if turn.is_over:
                turns.popleft()
            elif self._takes(turn):
                turns.popleft()
                turn.run()
            else:
                return

    def _takes(self, turn: Turn) -> bool:
        if not turn.is_large:
            turn.takes = self._take(turn.weight)
            return turn.takes > 0
        if self._has_large or self._free < 0 or not self._rooms.begin_large(self):
            return False
        self._has_large = True
        return True

    @property
    def _free(self) -> int:
        return ROOM - self.held - self._found - self._making

    def _take(self, weight: int) -> int:
        if self._rooms.has_to_wait(self):
            return 0
        takes = max(min(weight, _SMALL) if self._small >= _USUAL else weight, 1)
        free = self._free
        if takes > free and free < ROOM:
            return 0
        self._making += takes
        return takes

    def take(self, weight: int) -> int:
        """Takes room for a reply of up to a share that is made at once; the bytes that it takes, or
        0 if it has to ask and wait.
        """
        return 0 if self._turns else self._take(weight)

    def give_back(self, takes: int) -> None:
        """The reply is made for which `take` gave so many bytes."""
        self._making -= takes
        if self._turns:
            self.go_on()

    def ended(self, turn: Turn) -> None:
        """See `Turn.end`."""
        if turn.has_begun and turn.is_large:
            self._has_large = False
            self._rooms.end_large()
        elif turn.has_begun:
            self._making -= turn.takes
        self.go_on()

    @property
    def is_waited_for(self) -> bool:
        """Whether calls wait for room."""
        return bool(self._turns)

    # --- replies that are made ---

    def hold(self, size: int) -> None:
        """Holds so many bytes of a reply more, or less."""
        if size > 0:
            self._small = self._small + 1 if size < _SMALL else 0
        self.hold_part(size)

    def hold_part(self, size: int) -> None:
        """Holds bytes that are no reply by themselves."""
        self.held += size
        self._rooms.hold(self, size)
        if size < 0:
            self.go_on()

    def frame(self, size: int) -> None:
        """A frame of so many bytes is being made, or is made, then below 0. The server counts it
        beside the reply itself, which the room holds.
        """
        self._rooms.hold(self, size)

    @property
    def is_full(self) -> bool:
        """Whether a pop may not look."""
        return self.held + self._found >= ROOM or self._rooms.are_full

    def found(self, size: int) -> None:
        """A look has found so many bytes more; or less, when the loop holds them, if anybody."""
        with self._rooms.lock:
            self._found += size
            self._rooms.found += size


class HeldReply:
    """The messages of a reply that its client takes piece by piece."""

    __slots__ = ("_room", "_size")

    def __init__(self, room: ReplyRoom) -> None:
        self._room = room
        self._size = 0

    def hold(self, size: int) -> None:
        """Holds so many bytes more."""
        self._size += size
        self._room.hold(size)

    def end(self) -> None:
        """Holds nothing more; a second time does nothing."""
        size, self._size = self._size, 0
        self._room.hold(-size)


class ReplyRooms:
    """The rooms of all connections of a server; see the module. Used in the loop's thread, but for
    `are_full`, and `found` under `lock`.
    """

    def __init__(self) -> None:
        self.held = 0
        """Bytes of all rooms."""
        self.found = 0
        """Bytes that looks have found and the loop has not heard of."""
        self.lock = threading.Lock()
        self._holding: dict[ReplyRoom, None] = {}
        self._large = 0
        self._ending: ReplyRoom | None = None
        """The one that was given up last."""
        self._wait_for_large: dict[ReplyRoom, None] = {}
        self._wait_for_all: dict[ReplyRoom, None] = {}
        self._by_line: dict[RoomyLine, ReplyRoom] = {}

    def of(self, line: RoomyLine) -> ReplyRoom:
        """The room of a connection, from now until it is lost."""
        found = self._by_line.get(line)
        if found is None:
            found = self._by_line[line] = ReplyRoom(self, line.end_held)
            line.when_lost[_LOST] = partial(self._lost, line)
        return found

    def _lost(self, line: RoomyLine) -> None:
        del self._by_line[line]

    @property
    def are_full(self) -> bool:
        """Whether no reply may begin. It lasts until the loop has heard of all that was found, and
        the connections that held most have ended.
        """
        return self.held + self.found > HELD_MAX

    @property
    def is_waited_for(self) -> bool:
        """Whether rooms wait until they are not full."""
        return bool(self._wait_for_all or self._wait_for_large)

    def has_to_wait(self, room: ReplyRoom) -> bool:
        """Whether no reply may begin now; the room is told then when to ask again."""
        if self.are_full:
            self._wait_for_all[room] = None
            return True
        return False

    def begin_large(self, room: ReplyRoom) -> bool:
        """Whether a large reply may be made now; if not, the room is told when to ask again."""
        if self._large >= LARGE_MAX or self.are_full:
            self._wait_for_large[room] = None
            return False
        self._large += 1
        return True

    def end_large(self) -> None:
        """A large reply is made."""
        self._large -= 1
        self.go_on()

    def go_on(self) -> None:
        """Has those ask again that waited for others' replies."""
        while self._wait_for_all and not self.are_full:
            _first(self._wait_for_all).go_on()
        while self._wait_for_large and self._large < LARGE_MAX and not self.are_full:
            _first(self._wait_for_large).go_on()

    def hold(self, room: ReplyRoom, size: int) -> None:
        """See `ReplyRoom.hold`, which tells this."""
        self.held += size
        if room.held:
            self._holding[room] = None
        else:
            self._holding.pop(room, None)
        while self.held > HELD_MAX and self._holding:
            if self._ending is not None and self._ending.held:
                return  # it ends soon
            self._ending = max(self._holding, key=lambda one: one.held)
            self._ending.give_up()
        if size < 0:
            self.go_on()


def _first(waiting: dict[ReplyRoom, None]) -> ReplyRoom:
    """Takes the first one out."""
    room = next(iter(waiting))
    del waiting[room]
    return room
