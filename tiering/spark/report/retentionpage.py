"""Retention page: what a month costs if messages are kept for so many days.

The idea: a curve for everything and for each of the topics that cost most; the table says what
would no more be paid.

Invariant: a day counts as over when its last message is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tiering.spark.report import texts
from tiering.spark.report.figures import DayVolume, Figures, Sums, curve_of
from tiering.spark.report.markup import Head, Html, empty, join, section, table, tag
from tiering.spark.report.svg import Line, linear, panel, spaced
from tiering.spark.report.volumepage import others_of

_PANELS: Final = 6
_MARKS: Final = 4


def retention(figures: Figures) -> Html:
    """The section."""
    title = "What keeping less would save"
    lead = "What a month costs if messages are kept for so many days, and what that saves."
    if not figures.days:
        return section(title, lead, empty("There are no messages, so nothing could be saved."))
    note = (
        "An archive goes when its last message is over, and a segment as a whole, so space is free "
        "somewhat later than this says."
    )
    if not figures.retention:
        return section(
            title, lead, empty("Everything is less than a day old: no retention would save any.")
        )
    plots = [_curve("All topics", figures, figures.days)]
    named = [topic for topic in figures.topics if topic.topic is not None]
    for topic in named[: _PANELS - 1] if len(figures.topics) > 1 else ():
        mine = [one for one in figures.days if one.topic == topic.topic]
        plots.append(_curve(texts.name(topic.topic or ""), figures, mine))
    return section(
        title, lead,
        tag("h3", f"{figures.currency} a month by days kept"),
        tag("div", *plots, kind="panels"),
        tag("h3", f"{figures.currency} a month saved, if kept for"),
        _freed_table(figures),
        tag("p", note, kind="note"),
    )  # fmt: skip


def _curve(name: str, figures: Figures, days: Sequence[DayVolume]) -> Html:
    points = curve_of(days, figures.now_ms)
    places = texts.decimals([points[-1][1]])
    scale = linear(points[-1][1], texts.amount, 3)
    marks = [(x, f"{x:.0f} d") for x in spaced(0, max(points[-1][0], 1), _MARKS)]
    plot = panel(f"{name}: cost by days kept", [Line(name, "cold", points, True)], scale, marks)
    now = tag("span", f"{texts.money(points[-1][1], places)} now")
    return tag("figure", tag("h4", tag("b", name), now), Html(plot))


def _freed_table(figures: Figures) -> Html:
    kept = sorted({one.kept_days for one in figures.retention})
    places = texts.decimals(one.sums.cost_per_month for one in figures.retention)
    saved = {(one.topic, one.kept_days): one.sums for one in figures.retention}

    def row(name: str, now: Sums, freed: Sequence[Sums]) -> list[str]:
        cells = [_saved(one, now, places) for one in freed]
        return [name, texts.money(now.cost_per_month, places), *cells]

    def freed(topic: str | None) -> list[Sums]:
        return [saved.get((topic, limit), Sums()) for limit in kept]

    named = [topic for topic in figures.topics if topic.topic is not None]
    others = next((topic for topic in figures.topics if topic.topic is None), None)
    every = [freed(topic.topic) for topic in figures.topics]
    total = [sum(one, Sums()) for one in zip(*every, strict=True)]
    heads = [
        Head("Topic", "text"), Head("costs now"),
        *(Head(texts.plural(limit, "day")) for limit in kept),
    ]  # fmt: skip
    return table(
        heads,
        [row(texts.name(t.topic or ""), t.sums, freed(t.topic)) for t in named],
        row("All topics", figures.total.sums, total) if len(figures.topics) > 1 else None,
        row(others_of(figures), others.sums, freed(None)) if others is not None else None,
    )


def _saved(freed: Sums, now: Sums, places: int) -> str:
    if not freed.messages:
        return "–"
    part = texts.share(freed.cost_per_month, now.cost_per_month)
    return join([texts.money(freed.cost_per_month, places), " ", tag("small", f"({part})")])
