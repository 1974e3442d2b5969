"""Delay page: how long messages take from born to stored.

The idea: three percentiles, over days in a small panel for each of the topics with most messages,
and of all days in a table. The axis is logarithmic: a median of milliseconds and a hundredth of
minutes are both seen.

Invariant: clocks of producers may be wrong; a delay below nothing is shown as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

from tiering.spark.report import texts
from tiering.spark.report.figures import Delays, Figures
from tiering.spark.report.markup import Head, Html, empty, legend, section, table, tag
from tiering.spark.report.svg import Line, Scale, panel, spaced, times

_PANELS: Final = 6
_MARKS: Final = 4
_YEAR: Final = 300
"""Days from which on a mark without its year says little."""
_SHARES: Final = (("p99", "99 % are below"), ("p90", "90 %"), ("p50", "half"))


def delays(figures: Figures) -> Html:
    """The section."""
    title = "Delay from born to stored"
    lead = (
        "What producers and the way to the store took. Dead letters, which were born long before, "
        "and what the store writes for itself are left out."
    )
    totals = [one for one in figures.delays if one.day is None]
    if not totals:
        return section(title, lead, empty("There are no messages whose delay could be told."))
    totals.sort(key=lambda one: (one.topic is not None, -one.messages))
    if len(totals) == 2:
        totals = totals[1:]  # all topics are this one
    by_day = [one for one in figures.delays if one.day is not None]
    scale = times(
        min(one.p50 for one in [*by_day, *totals]), max(one.p99 for one in [*by_day, *totals]),
        texts.delay,
    )  # fmt: skip
    topics = [one.topic for one in totals if one.topic is not None][:_PANELS]
    plots = [
        _panel(topic, [one for one in by_day if one.topic == topic], scale) for topic in topics
    ]
    return section(
        title, lead,
        tag("h3", "By day, of the topics with most messages"),
        legend(_SHARES),
        tag("div", *plots, kind="panels"),
        tag("h3", "Of all days"),
        _table(totals),
    )  # fmt: skip


def _panel(topic: str, days: Sequence[Delays], scale: Scale) -> Html:
    found = sorted((one.day.toordinal(), one) for one in days if one.day is not None)
    lines = [
        Line(said, share, [(day, getattr(one, share)) for day, one in found])
        for share, said in _SHARES
    ]
    first, last = found[0][0], found[-1][0]
    said = texts.month if last - first > _YEAR else texts.day
    marks = [
        (first + x, said(date.fromordinal(int(first + x)))) for x in spaced(0, last - first, _MARKS)
    ]
    name = texts.name(topic)
    plot = panel(f"{name}: delay by day", lines, scale, marks)
    return tag("figure", tag("h4", tag("b", name)), Html(plot))


def _table(totals: Sequence[Delays]) -> Html:
    heads = [
        Head("Topic", "text"), Head("Messages"), Head("half below"), Head("90 % below"),
        Head("99 % below"), Head("longest"),
    ]  # fmt: skip

    def row(one: Delays) -> list[str]:
        name = "All of these" if one.topic is None else texts.name(one.topic)
        return [
            name, texts.count(one.messages),
            *(texts.delay(value) for value in (one.p50, one.p90, one.p99, one.max)),
        ]  # fmt: skip

    every = [row(one) for one in totals if one.topic is None]
    return table(heads, [row(one) for one in totals if one.topic is not None], *every)
