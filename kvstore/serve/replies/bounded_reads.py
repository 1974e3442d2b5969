"""Reads that begin when there is room for their replies.

The idea: a read says what its reply may weigh, and is made when its turn comes. A pull may bring
megabytes, and most bring kilobytes: so it is first tried with a share of the room, beside others,
and made once more, alone, if that did not have all that it asked for.

Invariants: the results are those of the calls by themselves; the turn of a large read ends when the
read has, also if nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from kvstore.core.messages import record_bytes
from kvstore.message import PullResult
from kvstore.serve.replies.open_calls import OpenCall
from kvstore.serve.replies.reply_room import SHARE, ReplyRoom, Turn

T = TypeVar("T")
_RECORD: Final = 128 << 10
"""Bytes of a message beside its body, at most."""
_WELL_FILLED: Final = 4
"""A reply with this part of a share at least may have been cut by it."""


def read_within(
    loop: asyncio.AbstractEventLoop, room: ReplyRoom, weight: int, make: Callable[[], OpenCall[T]]
) -> OpenCall[T]:
    """Makes a read whose reply may weigh so many bytes, when there is room. If it is cancelled
    before, it is not made.
    """

    def begin(turn: Turn) -> None:
        try:
            made = make()
        except Exception as e:
            call.set_exception(e)
            turn.end()
        else:
            made.add_done_callback(partial(_ended, call, turn))

    if weight <= SHARE and (takes := room.take(weight)):
        return _made_now(room, takes, make)
    call: OpenCall[T] = OpenCall(loop)
    turn = room.ask(weight, begin)
    if not turn.has_begun:
        call.add_done_callback(partial(_given_up, turn))
    return call


def _made_now(room: ReplyRoom, takes: int, make: Callable[[], OpenCall[T]]) -> OpenCall[T]:
    try:
        made = make()
    except BaseException:
        room.give_back(takes)
        raise
    made.add_done_callback(lambda _: room.give_back(takes))
    return made


def _ended(call: OpenCall[T], turn: Turn, made: OpenCall[T]) -> None:
    # First the result, which is held from then on.
    _pass_on(call, made)
    turn.end()


def _given_up(turn: Turn, call: OpenCall[T]) -> None:
    if not turn.has_begun:
        turn.end()


def _pass_on(call: OpenCall[T], made: OpenCall[T]) -> None:
    if call.done():
        return
    error = None if made.cancelled() else made.exception()
    if made.cancelled():
        call.cancel()
    elif error is not None:
        call.set_exception(error)
    else:
        call.set_result(made.result())


def weight_of(max_body: int, limit: int, most: int | None) -> int:
    """The bytes that a reply with so many messages may have. `max_body` is the store's; `most` the
    bytes to which the read keeps, but for its first message.
    """
    largest = max_body + _RECORD
    weight = limit * largest if most is None else min(limit * largest, max(most, largest))
    return max(weight, 0)


def pull_within(
    loop: asyncio.AbstractEventLoop,
    room: ReplyRoom,
    max_body: int,
    limit: int,
    most: int | None,
    pull: Callable[[int | None], OpenCall[PullResult]],
) -> OpenCall[PullResult]:
    """Makes a pull when there is room for its reply. `pull` begins one of so many bytes."""
    weight = weight_of(max_body, limit, most)
    if weight <= SHARE or max_body + _RECORD > SHARE:
        return read_within(loop, room, weight, partial(pull, most))
    return _Pull(loop, room, limit, weight, most, pull).call


class _Pull:
    """A pull whose reply may weigh more than a share, and its result, `call`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        room: ReplyRoom,
        limit: int,
        weight: int,
        most: int | None,
        pull: Callable[[int | None], OpenCall[PullResult]],
    ) -> None:
        self._room = room
        self._limit = limit
        self._weight = weight
        self._most = most
        self._pull = pull
        self.call: OpenCall[PullResult] = OpenCall(loop)
        self._turn: Turn | None = None
        self.call.add_done_callback(self._given_up)
        self._ask(SHARE)

    def _ask(self, weight: int) -> None:
        turn = self._room.ask(weight, self._begin)
        if not turn.is_over:  # a trial may have made way for the whole already
            self._turn = turn

    def _begin(self, turn: Turn) -> None:
        if self.call.done():
            turn.end()
            return
        is_trial = not turn.is_large
        if is_trial and self._room.expects_large:
            turn.end()
            self._ask(self._weight)
            return
        try:
            made = self._pull(SHARE if is_trial else self._most)
        except Exception as e:
            self.call.set_exception(e)
            turn.end()
        else:
            made.add_done_callback(partial(self._made, turn))

    def _made(self, turn: Turn, made: OpenCall[PullResult]) -> None:
        if not made.cancelled() and made.exception() is None and not self.call.done():
            found = made.result()
            is_short = len(found.messages) < self._limit and found.next_offset < found.max_offset
            if turn.is_large:
                self._room.expects_large = _is_well_filled(found)
            elif is_short and _is_well_filled(found):
                self._room.expects_large = True
                turn.end()
                self._ask(self._weight)
                return
        _ended(self.call, turn, made)

    def _given_up(self, call: OpenCall[PullResult]) -> None:
        if self._turn is not None:
            _given_up(self._turn, call)


def _is_well_filled(found: PullResult) -> bool:
    return record_bytes(found.messages) >= SHARE // _WELL_FILLED
