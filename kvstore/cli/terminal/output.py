"""Output: results as tables for people, JSON for machines, a progress bar for the patient.

The idea: a verb computes values and hands them to one `Output`; whether they become a table, plain
columns or JSON is decided here alone. On a terminal tables have lines and colours; into a pipe they
are plain aligned columns, never cut. Reports are typed Structs that grow with the store; they are
shown by their fields, so no field is forgotten.

Invariants: with `--json` stdout carries JSON and nothing else: one document, or one line for each
message of a stream. Text of messages never reaches a terminal as control characters or as markup.
The progress bar is on stderr, only if that is a terminal, and only once a second has passed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
import msgspec

from kvstore.clock import SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Report: TypeAlias = Callable[[str, int, int], None]
"""The work, the amount done, and the total (0: unknown)."""

_BAR_AFTER_S: Final = 1.0
"""Seconds before a progress bar appears."""
_VERDICTS: Final = {"ok": "green", "reached": "green", "wrong": "bold red", "short": "yellow"}
"""Cells that say how something ended have a colour."""


class Output:
    """Where one verb's results go."""

    def __init__(self, as_json: bool) -> None:
        self.json = as_json

    def document(self, value: object) -> None:
        """Prints one JSON document."""
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))

    def line(self, value: object) -> None:
        """Prints one line of a stream: a compact JSON document."""
        click.echo(msgspec.json.encode(value))

    def text(self, text: str, **style: Any) -> None:
        """Prints a line for people; `style` is click's (`fg`, `bold` ...) and dropped in a pipe."""
        click.secho(text, **style)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        title: str | None = None,
        right: Collection[str] = (),
    ) -> None:
        """Prints rows for people; columns of numbers, and those named in `right`, end flush."""
        cells = [[_cell(value) for value in row] for row in rows]
        to_right = [
            name in right or (bool(rows) and all(_is_number(row[i]) for row in rows))
            for i, name in enumerate(columns)
        ]
        if sys.stdout.isatty():
            _rich_table(columns, cells, to_right, title)
            return
        if title:
            click.echo(title)
        widths = [max(len(c), *(len(row[i]) for row in cells), 0) for i, c in enumerate(columns)]
        for row in [list(columns), *cells]:
            padded = [
                text.rjust(width) if flush else text.ljust(width)
                for text, width, flush in zip(row, widths, to_right, strict=True)
            ]
            click.echo("  ".join(padded).rstrip())

    def show(
        self,
        value: object,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        right: Collection[str] = (),
    ) -> None:
        """Prints a value: as a JSON document, or its rows for people."""
        if self.json:
            self.document(value)
        else:
            self.table(columns, rows, right=right)

    def done(self, value: object, text: str = "") -> None:
        """Prints what a verb did: a value for machines, a text for people; without one they see
        that it raised no error.
        """
        if self.json:
            self.document(value)
        elif text:
            self.text(text)

    def rows(self, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Prints rows of named values: as JSON objects, or as a table."""
        objects = [dict(zip(names, row, strict=True)) for row in rows]
        self.show(objects, [name.replace("_", " ") for name in names], rows)

    @contextmanager
    def progress(self) -> Iterator[Report]:
        """A function to report progress to while the block runs."""
        bar = _Bar()
        try:
            yield bar
        finally:
            bar.stop()


class _Bar:
    """A progress bar that shows itself when it is worth it."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._begin = self._clock.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._progress is None:
            waited = self._clock.monotonic() - self._begin
            if waited < _BAR_AFTER_S or not sys.stderr.isatty():
                return
            self._progress = _rich_progress()
            self._progress.start()
        if self._task is None or what != self._what:
            # Each kind of work gets a task of its own: a total can't be taken back.
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(what, total=None)
            self._what = what
        self._progress.update(self._task, completed=done, total=total or None)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _rich_progress() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f}", style="green"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _rich_table(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    to_right: Sequence[bool],
    title: str | None,
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold cyan",
        title=title, title_justify="left",
    )  # fmt: skip
    for name, flush in zip(columns, to_right, strict=True):
        table.add_column(name, justify="right" if flush else "left", overflow="fold")
    for row in cells:
        # Text: a body's [brackets] are not markup.
        table.add_row(*(Text(text, style=_VERDICTS.get(text, "")) for text in row))
    Console(highlight=False).print(table)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or value is None


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return printable(str(value))


def printable(text: str) -> str:
    """Text with control characters escaped, so that a message can't steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size_text(size: float) -> str:
    """Bytes for people: 1,234,567 is "1.2 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def exit_if(failed: object) -> None:
    """Ends the verb with exit code 1 if something failed."""
    if failed:
        raise click.exceptions.Exit(1)


def output_option(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a verb the option `--json` and, as its first argument, the `Output` that obeys it."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
    @functools.wraps(verb)
    def with_output(*args: Any, as_json: bool, **options: Any) -> Any:
        return verb(Output(as_json), *args, **options)

    return with_output


def show_report(out: Output, report: object) -> None:
    """Prints a report: as JSON, or as a table of names and values, and one for each list in it."""
    if out.json:
        out.document(report)
        return
    fields = dict(_flat("", msgspec.to_builtins(report)))
    tables = {name: rows for name, rows in fields.items() if _is_table(rows)}
    plain = [(name, _value(name, v)) for name, v in fields.items() if name not in tables]
    out.table(("what", "value"), plain)
    for name, rows in tables.items():
        columns = list(rows[0])
        out.table(columns, [[row.get(column) for column in columns] for row in rows], title=name)


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, content in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), content)
    else:
        yield prefix, value


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _value(name: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        is_size = "bytes" in name and value >= 1024
        return f"{value:,} ({size_text(value)})" if is_size else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, list):
        return ", ".join(str(v) for v in value)
    return str(value)
