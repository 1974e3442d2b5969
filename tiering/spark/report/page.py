"""Page: writes a report's figures as one file of HTML that needs nothing else.

The idea: the template has the sections, each with a sentence on its content, plots, and a table
with their numbers. Here the content is worked out: days put together so that a column can be seen,
the topics that have a plot, the savings. No scripts, nothing is fetched, so the page can be mailed,
printed and kept.

Invariants: every section is there, whatever the figures are; columns, tables and headlines are sums
of the same rows; each name out of a message goes through `texts.name`, and is escaped by the
template.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import Final, NamedTuple

from tiering.errors import ExtraMissing
from tiering.spark.report import texts
from tiering.spark.report.figures import (
    TIERS,
    DayVolume,
    DeadLetters,
    Delays,
    Figures,
    Sums,
    TopicVolume,
    curve_of,
)

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    from tiering.spark.report import plots
except ModuleNotFoundError as e:
    raise ExtraMissing(
        f"a report's page takes {e.name}, which is not installed: pip install 'kvmq[plot]'", "plot"
    ) from e

_COLUMNS_MAX: Final = 124
"""Days that have a column each; of more it is weeks, of still more months."""
_STRIP_MAX: Final = 170
"""Columns of a strip; of more days several share one."""
_COLOURED: Final = 6
"""Topics that have a colour of their own."""
_PANELS: Final = 6
_YEAR: Final = 300
"""Days from which on a mark without its year says little."""
_SHARES: Final = (("p99", "99 % are below"), ("p90", "90 %"), ("p50", "half"))
_FILTERS: Final = (
    texts.count, texts.decimals, texts.delay, texts.instant, texts.money, texts.name, texts.plural,
    texts.share, texts.short, texts.size,
)  # fmt: skip
_TEMPLATES: Final = Environment(
    loader=PackageLoader("tiering.spark.report"), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.do"],
)  # fmt: skip
_TEMPLATES.filters |= {of.__name__: of for of in _FILTERS}


Panel = tuple[str, str, Markup]
"""A name, what is said beside it, and the plot."""
StripRow = tuple[DeadLetters, str, list[int], str]


class TopicRow(NamedTuple):
    """A topic in tables, or others (`kind` "rest"), or all ("sum"); `freed` by days kept."""

    name: str
    kind: str
    topic: TopicVolume
    freed: list[Sums]


def page(figures: Figures) -> str:
    """The page."""
    kept = sorted({one.kept_days for one in figures.retention})
    archives = ", ".join(f"{texts.count(n)} {tier}" for tier, n in figures.archives.items())
    dead_days, dead_letters = _dead_letters(figures.dead_letters)
    delays = _delays(figures)
    return _TEMPLATES.get_template("report.html").render(
        figures=figures,
        span=_span(figures),
        prices=", ".join(f"{figures.prices[tier]:g} {tier}" for tier in TIERS),
        archives=archives or ("everything is in the log" if figures.days else ""),
        topics=list(_topics(figures, kept)),
        volume=list(_volume(figures)) if figures.days else [],
        dead_days=dead_days,
        dead_letters=dead_letters,
        delays=delays,
        shares=_SHARES,
        delay_plots=list(_delay_plots(figures, delays)),
        kept=kept,
        cost_plots=list(_cost_plots(figures)) if figures.retention else [],
    )


def _span(figures: Figures) -> str:
    if not figures.days:
        return "There are no messages."
    days = [one.day for one in figures.days]
    first, last = (texts.day(one, with_year=True) for one in (min(days), max(days)))
    when = f"on {first}" if first == last else f"from {first} to {last}"
    return f"What is there was stored {when}; days are UTC."


def _topics(figures: Figures, kept: Sequence[int]) -> Iterator[TopicRow]:
    saved = {(one.topic, one.kept_days): one.sums for one in figures.retention}
    others = texts.plural(figures.topics_count - len(figures.topics) + 1, "other topic")
    every = []
    for topic in figures.topics:
        every.append([saved.get((topic.topic, limit), Sums()) for limit in kept])
        named = (others, "rest") if topic.topic is None else (texts.name(topic.topic), "")
        yield TopicRow(*named, topic, every[-1])
    if len(every) > 1:
        total = [sum(each, Sums()) for each in zip(*every, strict=True)]
        yield TopicRow("All topics", "sum", figures.total, total)


# --- volume ---------------------------------------------------------------------------------------


def _volume(figures: Figures) -> Iterator[tuple[str, list[tuple[str, str]], Markup]]:
    """Yields the title of each plot, its colours, and the plot."""
    starts, unit = binned([one.day for one in figures.days])
    labels = [_label(start, unit, starts[0]) for start in starts]
    tiers = [(tier, tier, [one for one in figures.days if one.tier == tier])
             for tier in figures.total.tiers]  # fmt: skip
    largest = sorted(figures.topics, key=lambda topic: -topic.sums.raw_bytes)
    names = [topic.topic for topic in largest if topic.topic is not None][:_COLOURED]
    topics = [(texts.name(name), f"c{i}", [one for one in figures.days if one.topic == name])
              for i, name in enumerate(names)]  # fmt: skip
    if rest := [one for one in figures.days if one.topic not in names]:
        topics.append(("others", "rest", rest))
    for name, by, cut, of, text in (
        ("Bytes stored now", "tier", tiers, "stored_bytes", texts.tick),
        (f"{figures.currency} a month", "tier", tiers, "cost_per_month", texts.amount),
        ("Bytes of records", "topic", topics, "raw_bytes", texts.tick),
    ):
        series = [
            plots.Series(said, colour, _summed(starts, days, of)) for said, colour, days in cut
        ]
        most = max(map(sum, zip(*(one.values for one in series), strict=True)))
        ticks = plots.even_ticks(most) if text is texts.amount else plots.byte_ticks(most)
        told = f"{name}, by {unit} and {by}"
        colours = [(one.colour, one.name) for one in series]
        yield told, colours, plots.columns(told, labels, series, ticks, text)


def binned(days: Sequence[date]) -> tuple[list[date], str]:
    """The first days of all days, weeks or months from the first to the last of some; the shortest
    of these that are few enough to have a column each, and their name.
    """
    first, last = min(days), max(days)
    span = (last - first).days + 1
    if span <= _COLUMNS_MAX:
        return [first + timedelta(i) for i in range(span)], "day"
    if span <= 7 * _COLUMNS_MAX:
        monday = first - timedelta(first.weekday())
        return [monday + timedelta(i) for i in range(0, (last - monday).days + 1, 7)], "week"
    months = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
    return [date(number // 12, number % 12 + 1, 1) for number in months], "month"


def _summed(starts: Sequence[date], days: Iterable[DayVolume], of: str) -> list[float]:
    """An amount of the days from each start to the next."""
    values = [0.0] * len(starts)
    for one in days:
        values[bisect_right(starts, one.day) - 1] += getattr(one.sums, of)
    return values


def _label(start: date, unit: str, first: date) -> str:
    if unit == "month":
        return texts.month(start)
    return texts.day(start, with_year=unit == "week" and start.year != first.year)


# --- the others -----------------------------------------------------------------------------------


def _dead_letters(found: Sequence[DeadLetters]) -> tuple[str, list[StripRow]]:
    """When they came; and for each its last day, a strip's values and its text."""
    if not found:
        return "", []
    first = min(day for one in found for day, _ in one.days)
    last = max(day for one in found for day, _ in one.days)
    wide = (last - first).days // _STRIP_MAX + 1
    rows = []
    for one in found:
        values = [0] * ((last - first).days // wide + 1)
        for day, count in one.days:
            values[(day - first).days // wide] += count
        said = f"at most {max(values)} in {texts.plural(wide, 'day')}"
        mine = texts.day(max(day for day, _ in one.days), with_year=True)
        rows.append((one, mine, values, said))
    ends = [texts.day(day, with_year=first.year != last.year) for day in (first, last)]
    return f"when, {' to '.join(ends)}", rows


def _delays(figures: Figures) -> list[Delays]:
    """Of all days: the topics with most messages first, and all of them last."""
    found = [one for one in figures.delays if one.day is None]
    found.sort(key=lambda one: (one.topic is None, -one.messages))
    return found[:1] if len(found) == 2 else found  # one topic is all topics


def _delay_plots(figures: Figures, totals: Sequence[Delays]) -> Iterator[Panel]:
    named = [one for one in figures.delays if one.topic is not None]
    if not named:
        return
    ticks = plots.time_ticks(min(one.p50 for one in named), max(one.p99 for one in named))
    for topic in [one.topic for one in totals if one.topic is not None][:_PANELS]:
        days = sorted((one.day.toordinal(), one) for one in named if one.day and one.topic == topic)
        lines = [
            plots.Series(said, share, [getattr(one, share) for _, one in days])
            for share, said in _SHARES
        ]
        name, xs = texts.name(topic), [day for day, _ in days]
        mark = _long_mark if xs[-1] - xs[0] > _YEAR else _mark
        told = f"{name}: delay by day"
        yield name, "", plots.panel(told, xs, mark, lines, ticks, texts.delay, is_log=True)


def _mark(x: float) -> str:
    return texts.day(date.fromordinal(int(x)))


def _long_mark(x: float) -> str:
    return texts.month(date.fromordinal(int(x)))


def _cost_plots(figures: Figures) -> Iterator[Panel]:
    """Of everything, and of each of the topics that cost most."""
    cut = [("All topics", figures.days)]
    if len(figures.topics) > 1:
        cut += [
            (texts.name(one.topic), [day for day in figures.days if day.topic == one.topic])
            for one in figures.topics[: _PANELS - 1]
            if one.topic is not None
        ]
    for name, days in cut:
        kept, costs = zip(*curve_of(days, figures.now_ms), strict=True)
        now = f"{texts.money(costs[-1], texts.decimals(costs))} now"
        line, ticks = plots.Series(name, "cold", costs), plots.even_ticks(costs[-1], parts=3)
        told = f"{name}: cost by days kept"
        yield name, now, plots.panel(told, kept, "{:.0f} d".format, [line], ticks, texts.amount)
