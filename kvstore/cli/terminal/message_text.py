"""Messages on the command line: as JSON, as a line, as a page, and where in the input they stood.

The idea: one shape for every verb that shows messages. A body that is UTF-8 text is `body`, any
other is `body_base64`; `put --jsonl` reads JSON lines with the same names, so one store can take
the messages that another prints. Lines are put as columns. A store that refuses them gives the
number of the row at fault, counted from 0, which means nothing to a user who gave a file: the line
replaces it.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, BinaryIO, Final

import click
import msgspec

from kvstore import (
    ColumnBatch,
    DelayedMessage,
    InFlightMessage,
    PreparedMessage,
    StoredMessage,
)
from kvstore.cli.terminal.opening import time_text
from kvstore.cli.terminal.output import Output, printable
from kvstore.clock import SystemClock, whole_ms
from kvstore.core.arrow.column_batch import columns_to_put
from kvstore.core.names import DELAY_LEVELS_MS
from kvstore.errors import CallerError, MessageIllegal
from kvstore.record.put.explain import DELAY_MAX, check_delay

NUMBER_MAX: Final = (1 << 63) - 1
"""The largest number that a column holds."""
QUEUE_MAX: Final = NUMBER_MAX
"""A topic has far fewer queues."""
_BODY_SHOWN: Final = 100
"""Characters of a body in a one-line view."""


class MessageLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of a line about a message to put, as JSON names them; None means an absent field,
    except as a body. `line_from_json` leaves the bytes or the text of the body in `body`.
    """

    topic: str | None = None
    body: Any = msgspec.UNSET
    body_base64: str | None = None
    queue: Annotated[int, msgspec.Meta(ge=0, le=QUEUE_MAX)] | None = None
    tag: str | None = None
    keys: list[str] | str | None = None
    properties: dict[str, str] | None = None
    message_group: str | None = None
    deliver_at: int | None = None
    delay: float | None = None
    delay_level: int | None = None
    expires_at: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] | None = None
    dedup_id: str | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether it says when it is delivered."""
        return (self.deliver_at, self.delay, self.delay_level) != (None, None, None)


_decode: Final = msgspec.json.Decoder(MessageLine).decode


def body_value(body: bytes) -> dict[str, str]:
    """A body for JSON: text under `body`, or base64 under `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


_FIELDS: Final = (
    "topic", "queue", "offset", "position", "size", "message_id", "position_id", "tag", "keys",
    "message_group", "user_properties", "born_at", "stored_at", "expires_at", "born_host",
    "store_host", "flags", "system_flags", "reconsume_times",
)  # fmt: skip


def message_value(m: StoredMessage) -> dict[str, Any]:
    """Everything about a message, for JSON. Times are milliseconds since the epoch."""
    value = {name.removeprefix("user_"): getattr(m, name) for name in _FIELDS}
    return value | body_value(m.body)


def show_message(out: Output, m: StoredMessage, *, raw: bool = False) -> None:
    """Prints one message: all its fields, then the body; only the body, byte for byte, if `raw`."""
    if raw:
        sys.stdout.buffer.write(m.body)
        sys.stdout.buffer.flush()
        return
    if out.json:
        out.document(message_value(m))
        return
    _show_fields(out, m, {})


def _show_fields(out: Output, m: StoredMessage, instead: dict[str, Any]) -> None:
    """Prints the fields of a message for people, some of them replaced, and its body."""
    value = message_value(m) | instead
    value.pop("body", value.pop("body_base64", None))
    for name in ("born_at", "stored_at", "expires_at"):
        value[name] = None if value[name] is None else time_text(value[name])
    for name in ("born_host", "store_host"):
        value[name] = "{}:{}".format(*value[name])
    value["keys"] = " ".join(m.keys)
    properties = value.pop("properties")
    rows = [(name, str(content)) for name, content in value.items() if content not in (None, "")]
    rows += [(f"property {name}", content) for name, content in properties.items()]
    rows.append(("body", f"{len(m.body):,} bytes"))
    out.table(("field", "value"), rows)
    for line in m.body.decode("utf-8", "backslashreplace").split("\n"):
        click.echo(printable(line))


def show_messages(out: Output, messages: Iterable[StoredMessage], *, raw: bool = False) -> int:
    """Prints messages one a line as they come, and returns how many: bodies only if `raw`."""
    count = 0
    for m in messages:
        count += 1
        if raw:
            click.echo(m.body)
        elif out.json:
            out.line(message_value(m))
        else:
            click.echo(_line(m))
    return count


def delayed_value(delayed: DelayedMessage) -> dict[str, Any]:
    """Everything about a message that waits, for JSON: it has no offset yet."""
    return message_value(delayed.message) | _waits(delayed)


def _waits(delayed: DelayedMessage) -> dict[str, Any]:
    to = {"topic": delayed.topic, "queue": delayed.queue, "offset": None}
    return to | {"deliver_at": delayed.deliver_at}


def show_delayed(out: Output, delayed: DelayedMessage) -> None:
    """Prints a message that waits: all its fields, then the body."""
    if out.json:
        out.document(delayed_value(delayed))
        return
    due = time_text(delayed.deliver_at)
    _show_fields(out, delayed.message, _waits(delayed) | {"deliver_at": due})


def in_flight_value(one: InFlightMessage) -> dict[str, Any]:
    """Everything about a message in flight, for JSON; of one that can't be read its place alone."""
    shown = {} if one.message is None else message_value(one.message)
    lock = {name: getattr(one, name) for name in one.__struct_fields__ if name != "message"}
    return shown | lock


def prepared_value(prepared: PreparedMessage) -> dict[str, Any]:
    """Everything about a prepared message, for JSON: it has no offset yet."""
    return message_value(prepared.message) | _is_prepared(prepared)


def _is_prepared(prepared: PreparedMessage) -> dict[str, Any]:
    to = {"topic": prepared.topic, "queue": prepared.queue, "offset": None}
    names = ("group", "check_at", "checks", "since", "set_id")
    return to | {name: getattr(prepared, name) for name in names}


def show_prepared(out: Output, prepared: PreparedMessage) -> None:
    """Prints a prepared message: all its fields, then the body."""
    if out.json:
        out.document(prepared_value(prepared))
        return
    fields = _is_prepared(prepared)
    for name in ("check_at", "since"):
        fields[name] = None if fields[name] is None else time_text(fields[name])
    _show_fields(out, prepared.message, fields)


def body_text(m: StoredMessage) -> str:
    """The beginning of a message's body, as a text in one line."""
    body = m.body[: 4 * _BODY_SHOWN].decode("utf-8", "backslashreplace")
    if len(body) > _BODY_SHOWN or len(m.body) > 4 * _BODY_SHOWN:
        return body[: _BODY_SHOWN - 1] + "…"
    return body


def _line(m: StoredMessage) -> str:
    about = printable(f"{m.tag or '-':<10} {','.join(m.keys) or '-'}  {body_text(m)}")
    return f"{m.queue:>4} {m.offset:>9}  {time_text(m.stored_at)}  {about}"


def line_from_json(line: bytes) -> MessageLine:
    """The message that one JSON line describes. A body that is not text (a number, an object) is
    put as JSON. Raises `MessageIllegal`.
    """
    try:
        found = _decode(line)
    except msgspec.ValidationError as e:
        raise MessageIllegal(f"not a message: {e}") from e
    except (msgspec.DecodeError, RecursionError) as e:
        raise MessageIllegal(f"not JSON: {e}") from e
    body, encoded = found.body, found.body_base64
    if (body is msgspec.UNSET) == (encoded is None):
        raise MessageIllegal("a JSON line must have either body or body_base64")
    if encoded is not None:
        try:
            found.body = base64.b64decode(encoded, validate=True)
        except ValueError as e:
            raise MessageIllegal(f"body_base64 is not base64: {e}") from e
    elif type(body) is not str:
        found.body = msgspec.json.encode(body)
    if found.is_delayed:
        # The store knows whether it takes any time.
        now = SystemClock().now_ms()
        check_delay(found.deliver_at, found.delay, found.delay_level, now, any_time=True)
    return found


def columns_of(lines: Sequence[MessageLine], defaults: MessageLine) -> ColumnBatch:
    """Columns for `put_columns`; `defaults` has the values of absent fields."""
    own, pairs, keys = defaults, defaults.properties or {}, _listed(defaults.keys or [])
    now = SystemClock().now_ms()
    return columns_to_put(
        [line.body for line in lines],
        [own.queue if line.queue is None else line.queue for line in lines],
        [own.tag if line.tag is None else line.tag for line in lines],
        [keys if line.keys is None else _listed(line.keys) for line in lines],
        [pairs if line.properties is None else line.properties for line in lines],
        [own.message_group if line.message_group is None else line.message_group for line in lines],
        [_due_at(line if line.is_delayed else own, now) for line in lines],
        [own.expires_at if line.expires_at is None else line.expires_at for line in lines],
        [line.dedup_id for line in lines],
    )


def _due_at(line: MessageLine, now_ms: int) -> int | None:
    """When a message is due that is put now; as `kvstore.core.put_fields` has it."""
    if line.delay_level is not None:
        return now_ms + SystemClock.cut_ms + DELAY_LEVELS_MS[line.delay_level - 1]
    if line.delay is None:
        return line.deliver_at
    # As a time, the longest delay is at most 40 years from the clock's now.
    ahead = min(whole_ms(line.delay) + SystemClock.cut_ms, whole_ms(DELAY_MAX))
    return now_ms + (ahead if line.delay else 0)


def _listed(keys: list[str] | str) -> list[str]:
    return [keys] if isinstance(keys, str) else keys


_AT: Final = re.compile(r"row (\d+) of \d+: ")


def row_at_fault(error: CallerError) -> int | None:
    """The row of a `put_columns` that an error is about; None if it is about none."""
    found = _AT.match(str(error))
    return None if found is None else int(found[1])


def name_line(error: CallerError, line: str) -> None:
    """Makes an error begin with a line of the input, instead of a row's number."""
    error.args = (f"{line}: {_AT.sub('', str(error), count=1)}", *error.args[1:])


def name_of(stream: BinaryIO) -> str:
    """The name of an input."""
    name = getattr(stream, "name", None)
    return name if isinstance(name, str) and not name.startswith(("<", "-")) else "standard input"
