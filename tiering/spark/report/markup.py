"""Markup: HTML made of texts, so that no text becomes markup.

The idea: what is markup is of a type of its own, and only this module makes it; everything else is
a text, and escaped where it goes in.

Invariant: a text is escaped once, wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple


class Html(str):
    """Text that is markup."""

    __slots__ = ()


class Head(NamedTuple):
    """A column of a table: its name, and what it has: numbers, `text`, or a `plot`."""

    name: str
    kind: str = ""


def html(value: str) -> Html:
    """A text escaped; markup as it is."""
    return value if isinstance(value, Html) else Html(escape(value, quote=True))


def tag(name: str, *inside: str, kind: str = "") -> Html:
    """An element; `kind` is its class."""
    given = f' class="{escape(kind, quote=True)}"' if kind else ""
    return Html(f"<{name}{given}>{join(inside)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """One behind the other."""
    return Html("".join(map(html, parts)))


def figure(plot: str, caption: str = "", kind: str = "wide") -> Html:
    """A plot, which scrolls where it is too wide."""
    below = [tag("figcaption", caption)] if caption else []
    return tag("figure", tag("div", Html(plot), kind="scroll"), *below, kind=kind)


def legend(names: Iterable[tuple[str, str]]) -> Html:
    """Colours and what they mean."""
    rows = [tag("li", tag("i", kind=colour), name) for colour, name in names]
    return tag("ul", *rows, kind="legend")


def table(
    heads: Sequence[Head],
    rows: Iterable[Sequence[str]],
    total: Sequence[str] | None = None,
    rest: Sequence[str] | None = None,
) -> Html:
    """A table; `rest` is a row for what is left, `total` one for all."""
    kinds = [head.kind for head in heads]

    def row(cells: Sequence[str], more: str = "") -> list[Html]:
        each = zip(kinds, cells, strict=True)
        return [tag("td", cell, kind=f"{kind} {more}".strip()) for kind, cell in each]

    body = [tag("tr", *row(cells)) for cells in rows]
    if rest is not None:
        body.append(tag("tr", *row(rest, "rest")))
    if total is not None:
        body.append(tag("tr", *row(total), kind="sum"))
    names = [tag("th", head.name, kind=kind) for head, kind in zip(heads, kinds, strict=True)]
    inside = tag("table", tag("thead", tag("tr", *names)), tag("tbody", *body))
    return tag("div", inside, kind="scroll")


def section(title: str, lead: str, *parts: str) -> Html:
    """A section of the page."""
    return tag("section", tag("h2", title), tag("p", lead, kind="lead"), *parts)


def empty(text: str) -> Html:
    """What is said in place of a plot."""
    return tag("p", text, kind="empty")
