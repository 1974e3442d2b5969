"""The calls of a served store as requests: what is sent for a call, and what its reply is.

The idea: threads and asyncio send the same requests; they differ in how they wait for replies.

Invariants: a message that is put has an id before it is sent, so that a put whose reply was lost is
not made twice; a forked child gives out other ids than its parent.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from kvstore.api.store import Store
from kvstore.client.exchange import Sent
from kvstore.clock import Clock
from kvstore.core.unique_ids import UniqueIds
from kvstore.message import Message
from kvstore.process.forking import release_in_child
from kvstore.record.put.explain import as_batch
from kvstore.wire.call_table import HAVE_MESSAGES, HAVE_PROGRESS, read_result
from kvstore.wire.column_values import sendable
from kvstore.wire.values import encode, encode_batch, pack_argument

P = ParamSpec("P")
R = TypeVar("R")
_NO_NAMES: Final = encode({})
_OF_PUT: Final = signature(Store.put).parameters.keys()
_LOOPBACK: Final = bytes([127, 0, 0, 1])


class Requests:
    """Makes the requests of one client."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.forked()

    def forked(self) -> None:
        """See `process.forking.Holder`: the ids of a process are its own."""
        self._ids = UniqueIds(_LOOPBACK, os.getpid(), secrets.randbits(32))
        release_in_child(self)

    def make(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Sent:
        """The request for a call; `CallerError` for arguments that can't be sent."""
        given = list(args)
        by_name = dict(named)
        if method in HAVE_MESSAGES:
            if given:
                given[0] = self._packed(given[0])
            elif "messages" in by_name:
                given.append(self._packed(by_name.pop("messages")))
        else:
            if method == "put_columns":
                if "columns" in by_name:
                    by_name["columns"] = sendable(by_name["columns"], self._new_ids)
                else:
                    given[1:2] = [sendable(one, self._new_ids) for one in given[1:2]]
            given = [pack_argument(one) for one in given]
        has_progress = method in HAVE_PROGRESS and by_name.get("progress") is not None
        if has_progress:
            by_name["progress"] = True
        packed = {name: pack_argument(value) for name, value in by_name.items()}
        names = encode(packed) if packed else _NO_NAMES
        has_events = has_progress or method == "on_check"
        is_undone = method == "pop" and by_name.get("attempt_id") is None
        return Sent(method, encode(given), names, has_events=has_events, is_undone=is_undone)

    def _new_ids(self, count: int) -> list[str]:
        return self._ids.make(self._clock.now_ms(), count)

    def _packed(self, messages: Any) -> Any:
        return encode_batch(as_batch(messages), self._ids, self._clock.now_ms())


def result_of_call(sent: Sent) -> Any:
    """The result of a request that is done; raises its error."""
    if sent.error is not None:
        raise sent.error
    return read_result(sent.method, sent.result)


def message_of(topic: str, body: Any, fields: Mapping[str, Any]) -> Message:
    """The message of a `put`, where None stands for no properties; its TypeError for a field that
    it does not have.
    """
    for name in fields.keys() - _OF_PUT:
        raise TypeError(f"{Store.put.__qualname__}() got an unexpected keyword argument {name!r}")
    given = dict(fields)
    if given.get("properties", given) is None:
        del given["properties"]
    return Message(topic, body, **given)


def signed_as(
    method: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Gives a class's own way to make a call the signature of the store's."""

    def signed(own: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        return update_wrapper(own, method, assigned=())

    return signed
