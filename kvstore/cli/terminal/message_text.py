"""Messages on the command line: as JSON, as a line, as a page, and where in the input they stood.

The idea: one shape for every verb that shows messages. A body that is UTF-8 text is `body`, any
other is `body_base64`; `put --jsonl` reads JSON lines with the same names, so one store can take
the messages that another prints. A store that refuses a batch gives the number of the message at
fault, counted from 0, which means nothing to a user who gave a file: the line replaces it.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO, Final

import click
import msgspec

from kvstore import Message, StoredMessage
from kvstore.cli.terminal.opening import time_text
from kvstore.cli.terminal.output import Output, printable
from kvstore.errors import CallerError, MessageIllegal

_BODY_SHOWN: Final = 100
"""Characters of a body in a one-line view."""


class _JsonMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a JSON line about a message to put; None means an absent field, except as a
    body.
    """

    topic: str | None = None
    body: Any = msgspec.UNSET
    body_base64: str | None = None
    queue: int | None = None
    tag: str | None = None
    keys: list[str] | str | None = None
    properties: dict[str, str] | None = None
    message_group: str | None = None


def body_value(body: bytes) -> dict[str, str]:
    """A body for JSON: text under `body`, or base64 under `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


_FIELDS: Final = (
    "topic", "queue", "offset", "position", "size", "message_id", "position_id", "tag", "keys",
    "message_group", "user_properties", "born_at", "stored_at", "born_host", "store_host", "flags",
    "system_flags", "reconsume_times",
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
    value = message_value(m)
    value.pop("body", value.pop("body_base64", None))
    value |= {"born_at": time_text(m.born_at), "stored_at": time_text(m.stored_at)}
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


def _line(m: StoredMessage) -> str:
    body = m.body[: 4 * _BODY_SHOWN].decode("utf-8", "backslashreplace")
    if len(body) > _BODY_SHOWN or len(m.body) > 4 * _BODY_SHOWN:
        body = body[: _BODY_SHOWN - 1] + "…"
    about = printable(f"{m.tag or '-':<10} {','.join(m.keys) or '-'}")
    return f"{m.queue:>4} {m.offset:>9}  {time_text(m.stored_at)}  {about}  {printable(body)}"


def message_from_json(line: bytes, topic: str, defaults: dict[str, Any]) -> Message:
    """The message that one JSON line describes; `topic` and `defaults` fill in the absent fields.

    A body that is not text (a number, an object) is put as JSON. Raises `MessageIllegal`.
    """
    try:
        found = msgspec.json.decode(line, type=_JsonMessage)
    except msgspec.ValidationError as e:
        raise MessageIllegal(f"not a message: {e}") from e
    except (msgspec.DecodeError, RecursionError) as e:
        raise MessageIllegal(f"not JSON: {e}") from e
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    body, encoded = fields.pop("body"), fields.pop("body_base64")
    if (body is msgspec.UNSET) == (encoded is None):
        raise MessageIllegal("a JSON line must have either body or body_base64")
    fields = {name: value for name, value in fields.items() if value is not None}
    fields["body"] = _body_bytes(body, encoded)
    if isinstance(fields.get("keys"), str):
        fields["keys"] = [fields["keys"]]
    return Message(**{"topic": topic, **defaults, **fields})


def _body_bytes(body: Any, encoded: str | None) -> bytes:
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError as e:
            raise MessageIllegal(f"body_base64 is not base64: {e}") from e
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


_AT: Final = re.compile(r"message (\d+) of \d+: ")


def index_at_fault(error: CallerError, count: int) -> int | None:
    """The index of the message in a batch of `count` that an error is about; None if it is about
    none.
    """
    found = _AT.match(str(error))
    if found is not None:
        return int(found[1])
    return 0 if count == 1 else None


def name_line(error: CallerError, line: str) -> None:
    """Makes an error begin with a line of the input, instead of a number in a batch."""
    error.args = (f"{line}: {_AT.sub('', str(error), count=1)}", *error.args[1:])


def name_of(stream: BinaryIO) -> str:
    """The name of an input."""
    name = getattr(stream, "name", None)
    return name if isinstance(name, str) and not name.startswith(("<", "-")) else "standard input"
