"""Waiting pages: lists of messages that wait, page by page, for the verbs that list them.

The idea: `timer list`, `tx list` and `group in-flight` differ in the columns of a message alone. A
page ends with the place that the next one is asked for, which the page says.

Invariant: with `--json` a page is one document, whichever messages it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import click
import msgspec

from kvstore import DelayedPage, InFlightPage, PreparedPage
from kvstore.cli.terminal.options import Option, listed
from kvstore.cli.terminal.output import Output

T_co = TypeVar("T_co", covariant=True)
P = TypeVar("P", bound=DelayedPage | PreparedPage | InFlightPage)


class Page(Protocol[T_co]):
    """`kvstore.DelayedPage`, `kvstore.PreparedPage` or `kvstore.InFlightPage`."""

    @property
    def messages(self) -> Sequence[T_co]:
        """See there."""
        ...

    @property
    def count(self) -> int:
        """See there."""
        ...

    @property
    def next(self) -> tuple[int, ...] | None:
        """See there."""
        ...


class PageEnd(click.ParamType[tuple[int, ...]]):
    """Where a page of a list ended: so many numbers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """See `click.ParamType`."""
        parts = str(value).split(",")
        if len(parts) != self.name.count(",") + 1 or not all(map(str.isdecimal, parts)):
            self.fail(f"{value!r} is not what the page before ended with", param, ctx)
        return tuple(map(int, parts))


def _options(end: PageEnd) -> Option:
    return listed(
        click.option("--limit", type=click.IntRange(1, 10_000), default=32, show_default=True),
        click.option("--after", type=end, help="Where the page before ended, as it said."),
    )


page_options: Final = _options(PageEnd("TIME,POSITION"))
"""How much of a list of messages that wait is wanted, and from where."""
in_flight_options: Final = _options(PageEnd("TOPIC,TIME,QUEUE,FIRST,OFFSET"))
"""As `page_options`, of messages in flight."""


def whole_page(read: Callable[[int, Any], P], limit: int, after: Any) -> P:
    """A page of so many messages: `read` is asked again, with a limit and a place, as long as its
    pages have fewer and there are more.
    """
    page = read(limit, after)
    while page.next is not None and len(page.messages) < limit:
        more = read(limit - len(page.messages), page.next)
        messages: list[Any] = [*page.messages, *more.messages]
        page = msgspec.structs.replace(more, messages=messages)
    return page


def show_page(
    out: Output,
    page: Page[T_co],
    value_of: Callable[[T_co], object],
    columns: Sequence[str],
    row_of: Callable[[T_co], Sequence[object]],
    are: str = "wait",
) -> None:
    """Prints a page: its messages as values for JSON, or as rows, and how the next one is got."""
    following = None if page.next is None else ",".join(map(str, page.next))
    if out.json:
        messages = [value_of(one) for one in page.messages]
        out.document({"messages": messages, "count": page.count, "next": following})
        return
    out.table(columns, [row_of(one) for one in page.messages])
    click.echo(f"{page.count:,} messages {are}", err=True)
    if following is not None:
        click.echo(f"more with --after {following}", err=True)
