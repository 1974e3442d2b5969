"""Requests of clients: each goes to the gatherer, and its result back to the session.

Invariant: each request has one reply or failure, whatever its arguments are, unless its session has
ended or its connection broke while it waited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from kvstore.api.store import Store
from kvstore.api.topics_part import TopicsPart
from kvstore.clock import SystemClock
from kvstore.core.arrow.column_batch import ColumnBatch
from kvstore.core.popping.receipts import Popped, body_bytes
from kvstore.errors import (
    CallerError,
    Cancelled,
    FormatError,
    MessageTooLarge,
    StoreError,
    shown,
)
from kvstore.message import Message, PulledBatch, PullResult, PutResult, StoredMessage
from kvstore.pop.inflight.listing import InFlightPage
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.questions import Answer, Questions
from kvstore.serve.repeated import prepare_again, put_again, put_columns_again
from kvstore.serve.replies.bounded_reads import pull_within, read_within, weight_of
from kvstore.serve.replies.open_calls import OpenCall
from kvstore.serve.replies.reply_room import ASKED_BYTES, REPLY_BYTES, SHARE
from kvstore.serve.sessions import ClientSession, UnderWay
from kvstore.serve.tier_jobs import Tells, TierJob
from kvstore.timing.delayed_message import DelayedPage
from kvstore.timing.prepared_message import PreparedPage
from kvstore.wire.call_table import HAVE_MESSAGES, HAVE_PROGRESS, REPEATS, TIER
from kvstore.wire.column_values import SentColumns, packed_bytes, pulled_columns, sent_columns
from kvstore.wire.failures import pack_error
from kvstore.wire.frames import EVENT, FAILURE, LENGTH, REPLY, REPLY_MAX
from kvstore.wire.values import frame_of_result, read_arguments, read_batch

_LARGE: Final = 256 << 10
"""Bytes of messages from which on a thread makes the frame of their reply, or reads them to be put.
"""
_OBJECT: Final = 512
"""Bytes that a message takes as an object, beside its body."""
_PROGRESS_EVERY: Final = 0.1
"""Seconds between two events of one call's progress."""
_CUT_SHORT: Final = frozenset({"pop", TIER})
"""Calls that end with the connection; a client that comes back sends them again."""
_ONE: Final = ("get", "read_at", "find", "find_in", "prepared", "prepared_in", "timer", "timer_in")
"""Calls whose reply has one message."""
_PAGES: Final = ("query", "in_flight", "timers", "timers_in", "transactions", "transactions_in")
"""Calls whose reply has any number of messages."""
_LISTS: Final = (
    "topics", "topics_of", "groups", "groups_of", "group_topics", "group_stats", "schedules",
    "schedules_in", "next_firings", "namespaces", "offset_history", "lag", "segments", "catalog",
    "stats",
)  # fmt: skip
"""Calls whose reply has no messages, and may be long."""
_HAVE_MESSAGES: Final = frozenset({"pop", "pull", "pull_columns"})
_READS: Final = _HAVE_MESSAGES | {*_ONE, *_PAGES, *_LISTS}
"""Calls whose replies may be large."""
_LIMIT_AT: Final = {"pull": 3, "pull_columns": 3, "pop": 2}
_LIMITS: Final = {"pull": 32, "pull_columns": 1024, "pop": 1}
"""Where the limit stands among the arguments, and its default."""
_clock: Final = SystemClock()


class Request:
    """One request; see the module."""

    __slots__ = ("_gatherer", "_loop", "_number", "_session", "_store", "_under_way")

    def __init__(
        self, store: Store, gatherer: Gatherer, session: ClientSession, number: int, method: str
    ) -> None:
        self._store = store
        self._gatherer = gatherer
        self._loop = gatherer.loop
        self._session = session
        self._number = number
        self._under_way = UnderWay(method, waits=method in _CUT_SHORT, is_read=method in _READS)

    def begin(self, size: int, given: Any, named: Any, *, again: bool) -> None:
        """Reads the arguments, which took so many bytes, and hands the request to the gatherer."""
        under_way = self._under_way
        under_way.size = size
        self._session.begin(self._number, under_way)
        try:
            if self._session.guard is not None:
                self._session.guard.charge(size)
            if under_way.method == "put_batch" and size > _LARGE:
                under_way.call = self._put_large(size, given, named, again)
            else:
                arguments, by_name, part = self._read(given, named)
                under_way.call = self._call(part, arguments, by_name, again)
        except (StoreError, TypeError, ValueError, AttributeError) as e:
            self._reply(FAILURE, pack_error(e))
            return
        if under_way.call is not None:
            under_way.call.add_done_callback(self._made)

    def _read(self, given: Any, named: Any) -> tuple[list[Any], dict[str, Any], TopicsPart | None]:
        """The arguments, and the part of the store for the call: the client may make it."""
        method, guard = self._under_way.method, self._session.guard
        read = read_batch if method in HAVE_MESSAGES else read_arguments
        arguments, by_name = read(given), read_arguments(named)
        if type(arguments) is not list or type(by_name) is not dict:
            raise FormatError(f"the arguments are {shown(arguments)}, {shown(by_name)}")
        if method not in _HANDS and method not in REPEATS:
            raise CallerError(f"a served store has no call {shown(method)}")
        part = None if guard is None else guard.check(self._store, method, arguments, by_name)
        return arguments, by_name, part

    def _call(
        self, part: TopicsPart | None, given: list[Any], named: dict[str, Any], again: bool
    ) -> OpenCall[Any] | None:
        method = self._under_way.method
        hand = _HANDS.get(method)
        if hand is not None:
            return hand(self, given, named, again)
        if method in HAVE_PROGRESS and "progress" in named:
            named["progress"] = self._progress() if named["progress"] else None
        most = named.get("max_bytes")
        if method == "query" and (most is None or (type(most) is int and most > REPLY_BYTES)):
            named["max_bytes"] = REPLY_BYTES
        make = partial(self._gatherer.call, method, *given, **named)
        if part is not None:
            make = partial(self._gatherer.call_of, part, method, *given, **named)
        weight = self._weight_of(method)
        if not weight:
            return make()
        return read_within(self._loop, self._session.room, weight, make)

    def _weight_of(self, method: str) -> int:
        """The bytes that a reply may have; 0 for a small one."""
        if method in _ONE:
            return weight_of(self._store.config.max_body, 1, None)
        if method in _PAGES:
            return REPLY_BYTES
        return SHARE if method in _LISTS else 0

    # --- calls that the gatherer gathers, and those with messages ---

    def _put(
        self, given: list[Any], named: dict[str, Any], again: bool
    ) -> OpenCall[list[PutResult]]:
        messages = _messages_of(given, named)
        if again:
            return self._gatherer.run(partial(put_again, self._store, messages))
        return self._gatherer.put(messages, self._under_way.size)

    def _put_large(
        self, size: int, given: Any, named: Any, again: bool
    ) -> OpenCall[list[PutResult]]:
        """As `_put`; a thread reads the messages, too: of 50,000 the loop would be held up."""

        def read() -> list[Message]:
            arguments, by_name, _ = self._read(given, named)
            return _messages_of(arguments, by_name)

        if again:
            return self._gatherer.run(lambda: put_again(self._store, read()))
        return self._gatherer.put_read(read, size)

    def _put_columns(
        self, given: list[Any], named: dict[str, Any], again: bool
    ) -> OpenCall[SentColumns]:
        def put(topic: str, columns: object) -> SentColumns:
            if again and isinstance(topic, str) and isinstance(columns, ColumnBatch):
                return put_columns_again(store, topic, columns)
            return sent_columns(topic, store.put_columns(topic, columns))

        store = self._store
        return self._gatherer.put_in_turn(partial(put, *given, **named), self._under_way.size)

    def _prepare(
        self, given: list[Any], named: dict[str, Any], again: bool
    ) -> OpenCall[list[PutResult]]:
        if len(given) != 1:
            raise TypeError("prepare_batch takes one argument without a name, the messages")
        if again:
            return self._gatherer.run(partial(prepare_again, self._store, given[0], **named))
        return self._gatherer.call("prepare_batch", given[0], **named)

    def _ack(self, given: list[Any], named: dict[str, Any], again: bool) -> OpenCall[Any]:
        if len(given) == 1 and type(given[0]) is list and not named:
            return self._gatherer.ack(given[0])
        return self._gatherer.call("ack_batch", *given, **named)  # it says what is wrong

    def _pop(self, given: list[Any], named: dict[str, Any], again: bool) -> OpenCall[Any]:
        self._limit_bytes("pop", given, named)
        return self._gatherer.pop(*given, **named, room=self._session.room)

    def _pull(self, given: list[Any], named: dict[str, Any], again: bool) -> OpenCall[Any]:
        limit = self._limit_bytes("pull", given, named)

        def pull(most: int | None) -> OpenCall[PullResult]:
            return self._gatherer.call("pull", *given, **{**named, "max_bytes": most})

        config, most = self._store.config, named.get("max_bytes")
        if most is not None and type(most) is not int:
            return pull(most)  # the store refuses it
        return pull_within(self._loop, self._session.room, config.max_body, limit, most, pull)

    def _pull_columns(
        self, given: list[Any], named: dict[str, Any], again: bool
    ) -> OpenCall[PulledBatch]:
        def pull() -> PulledBatch:
            return pulled_columns(store.pull_columns(*given, **named))

        store = self._store
        limit = self._limit_bytes("pull_columns", given, named)
        most = named.get("max_bytes")
        if type(most) is not int:
            most = None
        weight = weight_of(store.config.max_body, limit, most)
        make = partial(self._gatherer.call_by, "pull_columns", pull)
        return read_within(self._loop, self._session.room, weight, make)

    def _tier(self, given: list[Any], named: dict[str, Any], again: bool) -> OpenCall[Any]:
        jobs = self._gatherer.tier_jobs
        if jobs is None:
            raise CallerError("this server has no tiering worker; kvmq serve DIR has one")
        operation, policy, arguments = given
        progress = self._progress() if named.get("progress") else None
        job = jobs.job(operation, policy, arguments, progress)
        call = self._gatherer.call_by(TIER, job.run)
        call.add_done_callback(partial(self._stop_if_cancelled, job))
        return call

    def _stop_if_cancelled(self, job: TierJob, call: OpenCall[Any]) -> None:
        if call.cancelled():
            self._gatherer.run(job.stop)

    def _change(self, given: list[Any], named: dict[str, Any], again: bool) -> OpenCall[Any]:
        return self._gatherer.change_invisible(*given, **named)

    def _limit_bytes(self, method: str, given: list[Any], named: dict[str, Any]) -> int:
        """Limits the bytes of a reply that may have too many; it has one message at least. Returns
        the limit of messages.
        """
        at = _LIMIT_AT[method]
        limit = given[at] if len(given) > at else named.get("limit", _LIMITS[method])
        most = named.get("max_bytes")
        if type(limit) is not int:
            return 0  # the store refuses it
        if limit * self._store.config.max_body <= REPLY_BYTES:
            return limit
        asked = min(ASKED_BYTES, REPLY_BYTES)
        if most is None or (type(most) is int and most > asked):
            named["max_bytes"] = asked
        return limit

    # --- replies ---

    def _made(self, call: OpenCall[Any]) -> None:
        """The call has its result."""
        if self._session.requests.get(self._number) is not self._under_way:
            if not call.cancelled():
                call.exception()  # nobody is there to be told
            return
        if call.cancelled():
            self._reply(FAILURE, pack_error(Cancelled("the call was cancelled by its caller")))
            return
        error = call.exception()
        if error is not None:
            self._reply(FAILURE, pack_error(error))
            return
        size, count = _size_and_count(call.result())
        if size < _LARGE:
            self._reply(REPLY, call.result())
        else:
            objects = size + count * _OBJECT
            self._session.room.hold(objects)
            self._session.room.frame(size)
            framing = self._gatherer.run(partial(self._framed, REPLY, call.result()))
            framing.add_done_callback(partial(self._is_framed, size, objects))

    def _reply(self, kind: int, value: Any) -> None:
        self._send(self._framed(kind, value))

    def _framed(self, kind: int, value: Any) -> bytes:
        """The frame of a reply or failure, or of the failure that there can't be such a frame."""
        try:
            framed = frame_of_result(kind, self._number, value)
            if len(framed) <= LENGTH.size + REPLY_MAX:
                return framed
            raise MessageTooLarge(
                "the reply is larger than a frame; ask for less", len(framed), REPLY_MAX
            )
        except (StoreError, TypeError, ValueError, OverflowError, NotImplementedError) as e:
            return frame_of_result(FAILURE, self._number, pack_error(e))

    def _send(self, framed: bytes) -> None:
        self._session.ended(self._number)
        self._session.send(framed)

    def _is_framed(self, size: int, objects: int, framing: OpenCall[bytes]) -> None:
        """A thread has made the frame of the reply, whose messages were held meanwhile."""
        self._session.room.frame(-size)
        if self._session.requests.get(self._number) is self._under_way:
            error = framing.exception()
            if error is None:
                self._send(framing.result())
            else:
                self._reply(FAILURE, pack_error(error))
        self._session.room.hold(-objects)

    def _event(self, value: Any) -> None:
        if self._session.requests.get(self._number) is self._under_way:
            self._session.send(frame_of_result(EVENT, self._number, value))

    def _progress(self) -> Tells:
        """A function that a thread tells its progress, now and then to be sent."""
        said = [0.0]

        def progress(what: str, done: int, total: int) -> None:
            now = _clock.monotonic()
            if done == total or now - said[0] >= _PROGRESS_EVERY:
                said[0] = now
                self._loop.call_soon_threadsafe(self._event, (what, done, total))

        return progress

    # --- questions about transactions ---

    def _ask(self, given: list[Any], named: dict[str, Any], again: bool) -> None:
        """Registers a checker, whose questions are the request's events."""
        questions = Questions(self._store.config.transaction_check_interval)

        def send(question: Any) -> None:
            self._loop.call_soon_threadsafe(self._event, question)

        def end() -> None:
            questions.close()
            self._gatherer.run(checker.close)
            self._reply(REPLY, None)

        (group,) = given
        guard = self._session.guard

        def ask(message: StoredMessage) -> Answer:
            return questions.ask(send, message)

        # Others are not kept waiting for one that may not be shown their messages.
        owns = None if guard is None else guard.may_produce
        checker = self._store._on_check(group, ask, owns)
        self._under_way.questions = questions
        self._under_way.end = end
        self._event(None)  # it is registered

    def _answer(self, given: list[Any], named: dict[str, Any], again: bool) -> OpenCall[Any]:
        number, question, answer = given
        asked = self._session.requests.get(number)
        if asked is not None and asked.questions is not None:
            asked.questions.answer(question, answer)
        call: OpenCall[Any] = OpenCall(self._loop)
        call.set_result(None)
        return call


def _messages_of(given: list[Any], named: dict[str, Any]) -> list[Message]:
    if len(given) != 1 or named:
        raise TypeError("put_batch takes one argument, the messages")
    messages: list[Message] = given[0]
    return messages


def _size_and_count(result: Any) -> tuple[int, int]:
    """The bytes of a result's messages, about, and how many objects these are."""
    kind = type(result)
    if kind is PulledBatch:
        return packed_bytes(result.columns), 0
    messages: Sequence[Any]
    if kind in (DelayedPage, PreparedPage, InFlightPage):
        messages = [one.message for one in result.messages if one.message is not None]
    else:
        messages = result.messages if kind is PullResult else result if kind is list else ()
    if not messages or type(messages[0]) not in (StoredMessage, Popped):
        return 0, 0
    return body_bytes(messages), len(messages)


_HANDS: Final[dict[str, Callable[..., OpenCall[Any] | None]]] = {
    "put_batch": Request._put,
    "put_columns": Request._put_columns,
    "prepare_batch": Request._prepare,
    "ack_batch": Request._ack,
    "pop": Request._pop,
    "pull": Request._pull,
    "pull_columns": Request._pull_columns,
    "change_invisible": Request._change,
    "on_check": Request._ask,
    "answer": Request._answer,
    TIER: Request._tier,
}
"""Calls that go other ways than to the store by their name."""
