"""Volume page: what is stored by topic, tier and day, and what it costs.

The idea: columns over days, once by tier as it lies, once by topic as it came in; the table has the
topics by cost. Many days are put together as weeks or months, so that a column can be seen.

Invariant: columns, table and headlines are sums of the same rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from typing import Final, NamedTuple

from tiering.spark.report import texts
from tiering.spark.report.figures import DayVolume, Figures, Sums, TopicVolume
from tiering.spark.report.markup import Head, Html, empty, figure, join, legend, section, table, tag
from tiering.spark.report.svg import Scale, Series, bar, binary, columns, linear

_COLUMNS_MAX: Final = 124
"""Days that have a column each; of more it is weeks, of still more months."""
_COLOURED: Final = 6
"""Topics that have a colour of their own."""
Amount = Callable[[Sums], float]


class _Cut(NamedTuple):
    """A part of all days, in a colour."""

    name: str
    colour: str
    days: list[DayVolume]


def volume(figures: Figures) -> Html:
    """The section."""
    title, lead = "Volume and cost", "What is stored, where, and what a month of it costs."
    if not figures.days:
        return section(title, lead, empty("There are no messages, so nothing is stored."))
    starts, unit = binned([one.day for one in figures.days])
    labels = [_label(start, unit, starts[0]) for start in starts]

    def drawn(
        name: str, by: str, cut: Iterable[_Cut], of: Amount, scale: Callable[..., Scale]
    ) -> Html:
        series = [Series(one.name, one.colour, _summed(starts, one.days, of)) for one in cut]
        most = max(map(sum, zip(*(one.values for one in series), strict=True)))
        key = [legend((one.colour, one.name) for one in series)] if len(series) > 1 else []
        told = f"{name}, by {unit} and {by}"
        plot = figure(columns(told, labels, series, scale(most)))
        return join([tag("h3", told), *key, plot])

    tiers, topics = _by_tier(figures), _by_topic(figures)
    return section(
        title, lead,
        drawn("Bytes stored now", "tier", tiers, lambda s: s.stored_bytes, _bytes),
        drawn(f"{figures.currency} a month", "tier", tiers, lambda s: s.cost_per_month, _money),
        drawn("Bytes of records", "topic", topics, lambda s: s.raw_bytes, _bytes),
        tag("h3", "Topics by cost"),
        _topics_table(figures),
    )  # fmt: skip


def _bytes(most: float) -> Scale:
    return binary(most, texts.tick)


def _money(most: float) -> Scale:
    return linear(most, texts.amount)


def _by_tier(figures: Figures) -> list[_Cut]:
    return [
        _Cut(tier, tier, [one for one in figures.days if one.tier == tier])
        for tier in figures.total.tiers
    ]


def _by_topic(figures: Figures) -> list[_Cut]:
    """The largest in colours of their own, and what is left."""
    largest = sorted(figures.topics, key=lambda topic: -topic.sums.raw_bytes)
    names = [topic.topic for topic in largest if topic.topic is not None][:_COLOURED]
    cut = [
        _Cut(texts.name(name), f"c{i}", [one for one in figures.days if one.topic == name])
        for i, name in enumerate(names)
    ]
    rest = [one for one in figures.days if one.topic not in names]
    return [*cut, _Cut("others", "rest", rest)] if rest else cut


def _topics_table(figures: Figures) -> Html:
    most = max(topic.sums.cost_per_month for topic in figures.topics) or 1.0
    places = texts.decimals(topic.sums.cost_per_month for topic in figures.topics)
    heads = [
        Head("Topic", "text"), Head("Messages"), Head("Records"), Head("Stored"),
        Head("of records"), Head(f"{figures.currency} a month"), Head("by tier", "plot"),
    ]  # fmt: skip

    def row(topic: TopicVolume, name: str) -> list[str]:
        sums = topic.sums
        parts = [(tier, of.cost_per_month / most) for tier, of in topic.tiers.items()]
        told = ", ".join(
            f"{tier} {texts.money(of.cost_per_month, places)}" for tier, of in topic.tiers.items()
        )
        return [
            name, texts.count(sums.messages), texts.size(sums.raw_bytes),
            texts.size(sums.stored_bytes), texts.share(sums.stored_bytes, sums.raw_bytes),
            texts.money(sums.cost_per_month, places), Html(bar(parts, told)),
        ]  # fmt: skip

    named = [topic for topic in figures.topics if topic.topic is not None]
    others = next((topic for topic in figures.topics if topic.topic is None), None)
    total = row(TopicVolume(None, figures.total.sums, {}), "All topics")
    total[-1] = ""
    return table(
        heads,
        [row(topic, texts.name(topic.topic or "")) for topic in named],
        total if len(figures.topics) > 1 else None,
        row(others, others_of(figures)) if others is not None else None,
    )


def others_of(figures: Figures) -> str:
    """The topics that are one row."""
    left = figures.topics_count - sum(topic.topic is not None for topic in figures.topics)
    return texts.plural(left, "other topic")


def binned(days: Sequence[date]) -> tuple[list[date], str]:
    """The first days of all days, weeks or months from the first to the last of some, whichever
    are few enough to have a column each, and what they are.
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


def _summed(starts: Sequence[date], days: Iterable[DayVolume], of: Amount) -> list[float]:
    """An amount of the days from each start to the next."""
    values = [0.0] * len(starts)
    for one in days:
        values[bisect_right(starts, one.day) - 1] += of(one.sums)
    return values


def _label(start: date, unit: str, first: date) -> str:
    if unit == "month":
        return texts.month(start)
    return texts.day(start, with_year=unit == "week" and start.year != first.year)
