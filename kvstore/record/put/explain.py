"""Explain: which message of a refused batch is wrong, and why.

The idea: the compiled encoder says that something is wrong but not with which message. Only then is
each message looked at by itself, field by field, and the first fault becomes an error that names
message, field and value. This is slow, and runs for refused batches only.

Invariants: every fault that `Encoder.prepare` refuses is found here, and no message that it accepts
is blamed; looking makes no topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, Final, NamedTuple, Protocol

from kvstore.core.arrow.given_columns import GivenColumns
from kvstore.core.encoding import PutRoute
from kvstore.core.names import (
    DATES_BEGIN,
    DATES_END,
    DEDUP_ID,
    DELAY_LEVEL,
    DELAY_LEVELS_MS,
    DIGITS_END,
    EXPIRES_AT,
    KEYS,
    MESSAGE_GROUP,
    PROPERTY_CRC,
    RESERVED,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SECONDS,
    TIMER_DELIVER_MS,
    TRANSIENT_PREFIX,
    UNIQUE_ID,
)
from kvstore.core.put_values import Message
from kvstore.errors import (
    CallerError,
    MessageIllegal,
    MessageTooLarge,
    PropertiesTooLarge,
    StoreError,
    shown,
)
from kvstore.record.compression import compress
from kvstore.record.layout import DEDUP_ID_MAX, FIXED_V1
from kvstore.record.validate import check_topic

FLAGS_END: Final = 1 << 32
TIMES_END: Final = 1 << 63
DELAY_MAX: Final = 1_262_304_000.0
"""Seconds of the longest delay: 40 years of 365.25 days."""
_WAIT_BYTES: Final = len("TIMER_OUT_MS 0000000000000 REAL_TOPIC  REAL_QID 0000000000 ")
"""Bytes of the properties that say how a message waits, without the name of its topic."""
PROPERTY_CRC_BYTES: Final = 20
EXPIRY_DIGITS: Final = len(str(DATES_END))
_ASK: Final = "; StoreConfig(any_time=True) allows other times"
ID_LENGTH: Final = 32
_INSTEAD: Final = {
    TAGS: "use tag=",
    KEYS: "use keys=",
    UNIQUE_ID: "use message_id=",
    MESSAGE_GROUP: "use message_group=",
    EXPIRES_AT: "use expires_at=",
    DEDUP_ID: "use dedup_id=",
    PROPERTY_CRC: "the store writes it itself",
    DELAY_LEVEL: "use delay_level=",
    TIMER_DELAY_SECONDS: "use delay=",
    TIMER_DELAY_MS: "use delay=",
    TIMER_DELIVER_MS: "use deliver_at=",
}


class TopicFacts(Protocol):
    """The facts of a topic that a put needs."""

    route: PutRoute
    hash_byte: int
    """The byte that makes two hashes of the same key in two topics; see `hashes.key_hash`."""


TopicOf = Callable[[str], TopicFacts]
"""The facts of a topic by its name; raises `CallerError`."""


class Limits(NamedTuple):
    """The limits of a message; sizes in bytes. The clock's time may be `cut_ms` ahead of the time
    of a put.
    """

    max_body: int
    max_record: int
    max_properties: int
    compress_above: int | None
    compression: str
    property_crc: bool
    any_time: bool
    cut_ms: int


class Rows:
    """Rows of columns as messages to a topic, each made when it is asked for."""

    def __init__(self, given: GivenColumns, topic: str) -> None:
        self._given = given
        self._topic = topic

    def __len__(self) -> int:
        return len(self._given)

    def __getitem__(self, row: int) -> Message:
        return self._given.message(self._topic, row)


def as_batch(messages: object) -> Sequence[Message]:
    """`messages` as a list, if it is a sequence; `MessageIllegal` if it is anything else."""
    if isinstance(messages, Sequence) and not isinstance(messages, (str, bytes, bytearray)):
        return list(messages)
    raise MessageIllegal(
        f"put_batch was given a {type(messages).__name__}; it takes a list of Message"
    )


def explain(
    messages: Sequence[Message] | Rows,
    why: Exception,
    limits: Limits,
    topic_of: TopicOf,
    now_ms: int,
    *,
    is_prepared: bool | None = False,
) -> tuple[StoreError, Exception | None]:
    """The error of the first message at fault, and the exception that its traceback should show.

    `why` is the exception that the encoder met at `now_ms`, and `topic_of` makes no topic. The
    messages are prepared ones if `is_prepared`; None: any kind of topic takes them. Faults of a
    message by itself come before faults of its topic or queue.
    """
    in_topic = partial(_check_in_topic, is_prepared=is_prepared)
    count, kind = len(messages), "row" if isinstance(messages, Rows) else "message"
    for look in (_check_message, in_topic):
        for index in range(count):
            where = f"{kind} {index} of {count}: "
            try:
                message = messages[index]
                if count == 1 and kind == "message" and isinstance(message, Message):
                    where = ""  # a single put has no index to be told
                look(message, limits, topic_of, now_ms)
            except CallerError as e:
                e.args = (f"{where}{e}",)
                return e, None
            except (AttributeError, LookupError, TypeError, ValueError) as e:
                return MessageIllegal(f"{where}{type(e).__name__}: {e}"), e
    # The messages changed while they were looked at, or the topics did.
    if isinstance(why, StoreError):
        return why, None
    return MessageIllegal(f"the messages can't be put: {type(why).__name__}: {why}"), why


def _is_creatable(name: str) -> bool:
    try:
        check_topic(name)
    except MessageIllegal:
        return False
    return True


def without_transient(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties without the transient ones, which are never stored."""
    return {
        k: v
        for k, v in properties.items()
        if not isinstance(k, str) or not k.startswith(TRANSIENT_PREFIX)
    }


# --- a message by itself ----------------------------------------------------------------------


def _check_message(m: Any, limits: Limits, topic_of: TopicOf, now_ms: int) -> None:
    if not isinstance(m, Message):
        raise MessageIllegal(f"it is a {type(m).__name__}; put_batch takes a list of Message")
    if not isinstance(m.topic, str):
        raise MessageIllegal(f"the topic is {shown(m.topic)}; it must be a text")
    if not _is_creatable(m.topic):
        topic_of(m.topic)
    _check_body(m.body, limits)
    _check_text("message_id", m.message_id, blanks=False, optional=True)
    _check_text("tag", m.tag, optional=True)
    _check_text("message_group", m.message_group, optional=True)
    _check_dedup_id(m)
    _check_keys(m.keys)
    _check_properties(m.properties)
    _check_numbers(m, any_time=limits.any_time)
    check_delay(
        m.deliver_at, m.delay, m.delay_level, now_ms + limits.cut_ms, any_time=limits.any_time
    )
    _check_sizes(m, FIXED_V1 + len(m.topic.encode()), limits)


def _check_body(body: object, limits: Limits) -> None:
    if isinstance(body, str):
        raise MessageIllegal("the body is text; encode it first, such as with .encode()")
    try:
        size = memoryview(body).nbytes  # type: ignore[arg-type]  # TypeError if it is no buffer
    except TypeError:
        raise MessageIllegal(
            f"the body is a {type(body).__name__}; it must be bytes-like"
        ) from None
    except ValueError as e:
        raise MessageIllegal(f"the body can't be read: {e}") from None
    if size > limits.max_body:
        raise MessageTooLarge(
            f"the body has {size} bytes, the limit is {limits.max_body}; "
            "raise StoreConfig.max_body or split it",
            size,
            limits.max_body,
        )


def _check_text(what: str, text: object, *, blanks: bool = True, optional: bool = False) -> None:
    if text is None and optional:
        return
    if not isinstance(text, str) or not text:
        raise MessageIllegal(
            f"{what} is {shown(text)}; it must be a text of at least one character"
        )
    if "\0" in text or "\x01" in text or "\x02" in text:
        raise MessageIllegal(f"{what} is {shown(text)}; it must not contain U+0000 to U+0002")
    if not blanks and " " in text:
        raise MessageIllegal(f"{what} is {shown(text)}; it must not contain blanks")
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise MessageIllegal(
            f"{what} is {shown(text)}; it can't be encoded as UTF-8: {e.reason}"
        ) from None


def _check_dedup_id(m: Message) -> None:
    dedup_id: Any = m.dedup_id
    _check_text("dedup_id", dedup_id, optional=True)
    delays = (m.deliver_at, m.delay, m.delay_level)
    if dedup_id is not None and any(delay is not None for delay in delays):
        raise MessageIllegal(
            f"dedup_id is {shown(dedup_id)} and the message is delayed; a delayed message has no "
            "dedup id: give it a message_id, and ask timer for that before you repeat the put"
        )
    size = 0 if dedup_id is None else len(dedup_id.encode())
    if size > DEDUP_ID_MAX:
        raise MessageIllegal(
            f"dedup_id is {shown(dedup_id)}, of {size} bytes as UTF-8; the limit is "
            f"{DEDUP_ID_MAX}: give a hash of it"
        )


def _check_keys(keys: Any) -> None:
    if isinstance(keys, str):
        raise MessageIllegal(f"keys is the text {shown(keys)}; it must be a list of texts")
    try:
        found = list(keys)
    except TypeError:
        raise MessageIllegal(f"keys is {shown(keys)}; it must be a list of texts") from None
    for key in found:
        _check_text("a key", key, blanks=False)


def _check_properties(properties: Any) -> None:
    if not isinstance(properties, Mapping):
        raise MessageIllegal(
            f"properties is {shown(properties)}; it must be a mapping of texts to texts"
        )
    for name, value in without_transient(properties).items():
        _check_text("a property's name", name)
        if name in RESERVED:
            instead = _INSTEAD.get(name, "the name is the system's own")
            raise MessageIllegal(f"property {shown(name)} is reserved; {instead}")
        _check_text(f"property {shown(name)}", value)


def _check_numbers(m: Message, *, any_time: bool) -> None:
    if type(m.flags) is not int or not 0 <= m.flags < FLAGS_END:
        raise MessageIllegal(
            f"flags is {shown(m.flags)}; it must be a whole number of 32 bits, 0 to {FLAGS_END - 1}"
        )
    born = m.born_at
    if born is not None and (type(born) is not int or not 0 <= born < TIMES_END):
        raise MessageIllegal(
            f"born_at is {shown(born)}; it must be whole milliseconds since the epoch, or None"
        )
    _check_expiry(m.expires_at, any_time=any_time)
    if m.queue is not None and (type(m.queue) is not int or m.queue < 0):
        raise MessageIllegal(
            f"queue is {shown(m.queue)}; it must be a queue of topic {shown(m.topic)}, 0 and up"
        )


def times_of(any_time: bool) -> tuple[int, int]:
    """The first time in ms that a caller may give, and the end of these times, which is none."""
    return (0, DIGITS_END) if any_time else (DATES_BEGIN, DATES_END)


def check_delay(
    deliver_at: Any, delay: Any, delay_level: Any, now_ms: int, *, any_time: bool
) -> None:
    """Raises `MessageIllegal` unless at most one of the three is given, and it is a time, a number
    of seconds, or a level of RocketMQ. A delay begins at `now_ms`.
    """
    named = {"deliver_at": deliver_at, "delay": delay, "delay_level": delay_level}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise MessageIllegal(f"{' and '.join(given)} are given; a message has one of them")
    if deliver_at is not None:
        if not _is_time(deliver_at, any_time=any_time):
            raise MessageIllegal(
                f"deliver_at is {shown(deliver_at)}; it must be whole milliseconds since the "
                f"epoch, {_span_text(any_time)} (delay=0 delivers now)"
                f"{_hint(deliver_at, any_time=any_time)}"
            )
        if deliver_at - now_ms > DELAY_MAX * 1000:
            raise MessageIllegal(
                f"deliver_at is {deliver_at}, {(deliver_at - now_ms) / 1000:.0f} s from now; "
                f"40 years ({DELAY_MAX:.0f} s) are the longest delay"
            )
    if delay is not None and (type(delay) not in (int, float) or not 0 <= delay <= DELAY_MAX):
        raise MessageIllegal(
            f"delay is {shown(delay)}; it must be 0 to {DELAY_MAX:.0f} seconds (40 years)"
        )
    if delay_level is not None and (
        type(delay_level) is not int or not 1 <= delay_level <= len(DELAY_LEVELS_MS)
    ):
        raise MessageIllegal(
            f"delay_level is {shown(delay_level)}; it must be 1 to {len(DELAY_LEVELS_MS)}"
        )
    ahead = 0 if delay_level is None else DELAY_LEVELS_MS[delay_level - 1]
    if delay is not None:
        ahead = ceil(delay * 1000 - 1e-6)  # as `core.put_fields` has it
    if ahead and now_ms + ahead >= times_of(any_time)[1]:
        raise MessageIllegal(
            f"{given[0]} is {shown(named[given[0]])}, which ends at {now_ms + ahead} ms since the "
            f"epoch; it must end {_span_text(any_time)}{'' if any_time else _ASK}"
        )


def _is_time(time: object, *, any_time: bool) -> bool:
    begin, end = times_of(any_time)
    return type(time) is int and begin <= time < end


def _check_expiry(time: object, *, any_time: bool) -> None:
    if time is None or _is_time(time, any_time=any_time):
        return
    raise MessageIllegal(
        f"expires_at is {shown(time)}; it must be whole milliseconds since the epoch, "
        f"{_span_text(any_time)}, or None{_hint(time, any_time=any_time)}"
    )


def _span_text(any_time: bool) -> str:
    """The times that a caller may give, as a part of an error."""
    begin, end = times_of(any_time)
    years = "from 1970 to 2286, as records have 13 digits" if any_time else "from 2000 to 2100"
    return f"{years} ({begin} to {end - 1})"


def _hint(time: object, *, any_time: bool) -> str:
    """The end of an error about a time: the unit that it may be in, and how to allow others."""
    ask = _ASK if not any_time and _is_time(time, any_time=True) else ""
    if isinstance(time, int | float) and not isinstance(time, bool):
        if DATES_BEGIN <= time * 1000 < DATES_END:
            return f"; this looks like seconds: multiply by 1000{ask}"
        if DATES_BEGIN <= time // 1000 < DATES_END:
            return "; this looks like microseconds: divide by 1000"
    return ask


def _check_sizes(m: Message, overhead: int, limits: Limits) -> None:
    parts = [(UNIQUE_ID, m.message_id or "0" * ID_LENGTH), *without_transient(m.properties).items()]
    for name, value in (
        (KEYS, " ".join(m.keys)),
        (TAGS, m.tag),
        (MESSAGE_GROUP, m.message_group),
        (DEDUP_ID, m.dedup_id),
    ):
        if value:
            parts.append((name, value))
    if m.expires_at is not None:
        parts.append((EXPIRES_AT, "0" * EXPIRY_DIGITS))
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in parts)
    if (m.deliver_at, m.delay, m.delay_level) != (None, None, None):
        size += _WAIT_BYTES + len(m.topic.encode())
    if limits.property_crc:
        size += PROPERTY_CRC_BYTES
    if size > limits.max_properties:
        raise PropertiesTooLarge(
            f"the properties take {size} bytes, the limit is {limits.max_properties}",
            size,
            limits.max_properties,
        )
    body = memoryview(m.body).nbytes
    size += overhead + body
    above = limits.compress_above
    if size > limits.max_record and above is not None and body > above:
        size -= max(body - len(compress(bytes(m.body), limits.compression)), 0)
    if size > limits.max_record:
        raise MessageTooLarge(
            f"the record takes {size} bytes, the limit is {limits.max_record}: a segment must hold "
            "it; compress the body, or make the store with a larger segment_size",
            size,
            limits.max_record,
        )


# --- a message in its topic -------------------------------------------------------------------


def _check_in_topic(
    m: Message, limits: Limits, topic_of: TopicOf, now_ms: int, *, is_prepared: bool | None
) -> None:
    topic = topic_of(m.topic)
    if topic.route.holds_pending:
        raise MessageIllegal(
            f"delayed or prepared messages wait in the topic {shown(m.topic)}, to which only the "
            "store puts; put to their own topic, with deliver_at or delay, or prepare them"
        )
    if m.queue is not None and m.queue >= topic.route.write_queues:
        raise MessageIllegal(
            f"topic {shown(m.topic)} has no queue {shown(m.queue)} to put to; "
            f"it has 0 to {topic.route.write_queues - 1}"
        )
    if m.dedup_id is not None and is_prepared:
        raise MessageIllegal(
            f"dedup_id is {shown(m.dedup_id)} and the message is prepared; a prepared message has "
            "no dedup id: give it a message_id, and ask prepared for that before you repeat it"
        )
    if m.dedup_id is not None and topic.route.dedup_window < 0:
        raise MessageIllegal(
            f"topic {shown(m.topic)} takes no dedup ids, as it has no window in which they are "
            "remembered; set one: alter_topic(..., dedup_window=120.0), in seconds"
        )
    _check_sizes(m, topic.route.overhead, limits)
    if is_prepared is not None:
        _check_kind(m, topic.route, is_prepared)


def _check_kind(m: Message, route: PutRoute, is_prepared: bool) -> None:
    delayed = (m.deliver_at, m.delay, m.delay_level) != (None, None, None)
    topic, kind = f"topic {shown(m.topic)}", route.kind
    if kind == "delay" and not delayed:
        raise MessageIllegal(
            f"{topic} is of kind 'delay', for delayed messages only: give deliver_at, delay or "
            "delay_level, or put it to a topic of another kind"
        )
    if kind == "transaction" and not is_prepared:
        raise MessageIllegal(
            f"{topic} is of kind 'transaction', for prepared messages only: prepare it, or put it "
            "to a topic of another kind"
        )
    if kind == "fifo" and is_prepared:
        raise MessageIllegal(
            f"{topic} is of kind 'fifo', whose messages are in order, so none is prepared: put it, "
            "or prepare it for a topic of another kind"
        )
    if kind == "fifo" and delayed:
        raise MessageIllegal(
            f"{topic} is of kind 'fifo', whose messages are in order, so none is delayed: put it "
            "without a delay, or to a topic of another kind"
        )
    if kind == "fifo" and m.message_group is None and m.queue is None:
        raise MessageIllegal(
            f"{topic} is of kind 'fifo', whose messages are in order: give the message_group, or "
            "the queue, in which this one has its place"
        )
    if kind == "compacted" and not list(m.keys):
        raise MessageIllegal(
            f"{topic} is of kind 'compacted', which keeps the newest message of each key: give "
            "keys, or put it to a topic of another kind"
        )
    if delayed and not route.takes_delays:
        raise MessageIllegal(
            f"{topic} was made with takes_delays=False: put it without a delay, or use "
            "alter_topic to allow delays"
        )
