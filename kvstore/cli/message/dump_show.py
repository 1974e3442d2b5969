"""Dump show: the records that the verb `dump` chooses, and how it shows them.

The idea: for people a heading for each file and lines under it, for programs one JSON object a
line; each record is printed when it comes, and counted.

Invariant: whatever the bytes are, damage is a line of its own, and nothing is left out silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from kvstore.cli.terminal.output import Output, printable
from kvstore.core.messages import StoredMessage
from kvstore.record.walk import Kind
from kvstore.rocketmq.describe import body_lines, describe, record_rows
from kvstore.rocketmq.log_files import FileExtent
from kvstore.rocketmq.side_files import BatchEntry, QueueEntry

BODY_SHOWN: Final = 1024
"""Bytes of a body shown to people, unless --body says otherwise."""
_TRANSACTION_MASK: Final = 0xC
_COMMIT: Final = 0x8


class Choice(NamedTuple):
    """The choice of records to show."""

    topic: str | None
    queue: int | None
    offset: int | None
    start: int
    limit: int | None

    @property
    def is_one_message(self) -> bool:
        """Whether at most one record can be chosen."""
        return None not in (self.topic, self.queue, self.offset)

    @property
    def is_filter(self) -> bool:
        """Whether only some records of a log are chosen."""
        return self.topic is not None or self.queue is not None

    def takes(self, message: StoredMessage) -> bool:
        """Whether this record is chosen."""
        if self.topic is not None and message.topic != self.topic:
            return False
        if self.queue is not None and message.queue != self.queue:
            return False
        if self.offset is None:
            return True
        # Prepared and rolled-back messages carry offset 0, but are in no queue.
        state = message.system_flags & _TRANSACTION_MASK
        return message.offset == self.offset and state in (0, _COMMIT)


def builtins_of(value: object) -> dict[str, Any]:
    """A Struct as plain values, by field."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    return fields


class Show:
    """Prints records, damage and entries, for people or as JSON lines, and counts them."""

    def __init__(self, out: Output, body_max: int | None) -> None:
        self.out = out
        self.records = 0
        self.entries = 0
        self.damaged = 0
        self._blanks = 0
        self._path: Path | None = None
        self._body_max = BODY_SHOWN if body_max is None and not out.json else body_max

    def extent(self, extent: FileExtent) -> None:
        """One extent of a log: a record, a blank record, damage or the unwritten end."""
        path, found, message = extent
        if message is not None:
            self.message(path, message)
            if found.reason:
                self.damage(path, found.position, 0, found.reason)
        elif found.kind is Kind.DAMAGE:
            self.damage(path, found.position, found.size, found.reason)
        else:
            self._blanks += found.kind is Kind.BLANK
            what = "blank record, the rest of the file" if found.kind is Kind.BLANK else "unwritten"
            self._line(
                path, found.kind, {"position": found.position, "size": found.size},
                f"{what}: {found.size:,} bytes at {found.position}", dim=True,
            )  # fmt: skip

    def message(self, path: Path, message: StoredMessage) -> None:
        """One message, decoded with its body as stored."""
        self.records += 1
        described = describe(message, self._body_max)
        self._record(path, described)
        if problem := described.get("body_problem"):
            self.damage(path, message.position, 0, f"record at {message.position}: {problem}")

    def damage(self, path: Path, position: int, size: int, reason: str) -> None:
        """Shows damage; `position` is -1 if it has none in the log."""
        self.damaged += 1
        where = f" at {position}" if position >= 0 else ""
        skipped = f", {size:,} bytes skipped" if size else ""
        self._line(
            path, "damage",
            {"position": position if position >= 0 else None, "size": size, "reason": reason},
            f"DAMAGE{where}{skipped}: {printable(reason)}", fg="red", bold=True,
        )  # fmt: skip

    def entry(self, path: Path, entry: QueueEntry | BatchEntry) -> None:
        """One entry of a consume queue."""
        self.entries += 1
        self.fields(path, "entry", builtins_of(entry))

    def unused(self, path: Path, at: int, units: int, reason: str) -> None:
        """Units of a consume queue that hold no entry."""
        fields = {"at": at, "units": units, "reason": reason}
        self._line(path, "unused", fields, f"{units:,} {reason} units at byte {at}", dim=True)

    def fields(self, path: Path, kind: str, fields: dict[str, Any]) -> None:
        """Shows a small structure on one line."""
        text = "  ".join(f"{_label(name)} {value}" for name, value in fields.items())
        self._line(path, kind, fields, f"{kind}: {text}")

    def summary(self) -> None:
        """Prints the counts for people."""
        if not self.out.json and (self.records or self._blanks or self.entries or self.damaged):
            click.echo(
                f"{self.records:,} records, {self._blanks:,} blank records, "
                f"{self.entries:,} entries, {self.damaged:,} damaged places",
                err=True,
            )

    def _line(self, path: Path, kind: str, fields: dict[str, Any], text: str, **style: Any) -> None:
        if self.out.json:
            self.out.line({"kind": kind, "file": str(path), **fields})
        else:
            self._heading(path)
            self.out.text(text, **style)

    def _record(self, path: Path, described: dict[str, Any]) -> None:
        if self.out.json:
            self.out.line({"kind": "record", "file": str(path), **described})
            return
        self._heading(path)
        title = f"record at {described['position']}: {described['size']:,} bytes"
        lines = [click.style(title, fg="cyan", bold=True)]
        for label, value in record_rows(described):
            name = click.style(f"{printable(label):<20}", fg="bright_black")
            lines.append(f"  {name}{printable(value)}")
        lines += (f"    {printable(line)}" for line in body_lines(described))
        if described["body_truncated"]:
            lines.append(click.style("    ... (more with --body)", fg="bright_black"))
        click.echo("\n".join(lines))  # all at once: each echo is a write

    def _heading(self, path: Path) -> None:
        if path != self._path:
            self._path = path
            self.out.text(printable(str(path)), bold=True, underline=True)


def _label(name: str) -> str:
    return name.replace("_", " ")
