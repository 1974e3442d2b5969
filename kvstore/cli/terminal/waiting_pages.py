"""Waiting pages: lists of messages that wait, page by page, for the verbs that list them.

The idea: `timer list` and `tx list` differ in the columns of a message alone. A page ends with the
place that the next one is asked for, which the page says.

Invariant: with `--json` a page is one document, whichever messages it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import click

from kvstore.cli.terminal.options import Option, listed
from kvstore.cli.terminal.output import Output

T_co = TypeVar("T_co", covariant=True)


class Page(Protocol[T_co]):
    """`kvstore.DelayedPage` or `kvstore.PreparedPage`."""

    @property
    def messages(self) -> Sequence[T_co]:
        """See there."""
        ...

    @property
    def count(self) -> int:
        """See there."""
        ...

    @property
    def next(self) -> tuple[int, int] | None:
        """See there."""
        ...


class PageEnd(click.ParamType[tuple[int, int]]):
    """Where a page of the list ended: a due time in ms, and a position."""

    name = "TIME,POSITION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """See `click.ParamType`."""
        due, _, position = str(value).partition(",")
        if not (due.isdecimal() and position.isdecimal()):
            self.fail(f"{value!r} is not what the page before ended with", param, ctx)
        return int(due), int(position)


page_options: Option = listed(
    click.option("--limit", type=click.IntRange(1, 10_000), default=32, show_default=True),
    click.option("--after", type=PageEnd(), help="Where the page before ended, as it said."),
)
"""How much of a list is wanted, and from where."""


def show_page(
    out: Output,
    page: Page[T_co],
    value_of: Callable[[T_co], object],
    columns: Sequence[str],
    row_of: Callable[[T_co], Sequence[object]],
) -> None:
    """Prints a page: its messages as values for JSON, or as rows, and how the next one is got."""
    following = None if page.next is None else f"{page.next[0]},{page.next[1]}"
    if out.json:
        messages = [value_of(one) for one in page.messages]
        out.document({"messages": messages, "count": page.count, "next": following})
        return
    out.table(columns, [row_of(one) for one in page.messages])
    click.echo(f"{page.count:,} messages wait", err=True)
    if following is not None:
        click.echo(f"more with --after {following}", err=True)
