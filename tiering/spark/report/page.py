"""Page: writes a report's figures as one file of HTML that needs nothing else.

The idea: the template has the sections, each with a sentence on its content, plots, and a table
with their numbers. Here the content is worked out: days put together so that a column can be seen,
the topics that have a plot, the savings. matplotlib draws the plots, and `_inline` fits its SVG
into the page: a colour becomes a variable of the style sheet, so that it is right by day, by night
and on paper; the text of a column or a line becomes its title; ids, styles and metadata go. No
scripts, nothing is fetched, so the page can be mailed, printed and kept.

Invariants:

- Every section is there, whatever the figures are.
- Columns, tables and headlines are sums of the same rows.
- Each name out of a message goes through `texts.name`, and is escaped by the template.
- The same values make the same bytes, whatever the reader's matplotlibrc says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import partial
from io import StringIO
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.etree import ElementTree

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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

try:
    import matplotlib as mpl
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
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
        series = [Series(said, colour, _summed(starts, days, of)) for said, colour, days in cut]
        most = max(map(sum, zip(*(one.values for one in series), strict=True)))
        ticks = even_ticks(most) if text is texts.amount else byte_ticks(most)
        told = f"{name}, by {unit} and {by}"
        colours = [(one.colour, one.name) for one in series]
        yield told, colours, columns(told, labels, series, ticks, text)


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
    ticks = time_ticks(min(one.p50 for one in named), max(one.p99 for one in named))
    for topic in [one.topic for one in totals if one.topic is not None][:_PANELS]:
        days = sorted((one.day.toordinal(), one) for one in named if one.day and one.topic == topic)
        lines = [
            Series(said, share, [getattr(one, share) for _, one in days]) for share, said in _SHARES
        ]
        name, xs = texts.name(topic), [day for day, _ in days]
        said = texts.month if xs[-1] - xs[0] > _YEAR else texts.day
        told = f"{name}: delay by day"
        mark = partial(_mark, said)
        yield name, "", panel(told, xs, mark, lines, ticks, texts.delay, is_log=True)


def _mark(said: Callable[[date], str], x: float) -> str:
    return said(date.fromordinal(int(x)))


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
        line, ticks = Series(name, "cold", costs), even_ticks(costs[-1], parts=3)
        told = f"{name}: cost by days kept"
        yield name, now, panel(told, kept, "{:.0f} d".format, [line], ticks, texts.amount)


# --- plots ----------------------------------------------------------------------------------------


_COLOURS: Final = (
    "line", "rule", "soft", "hot", "warm", "cold", "rest", "p50", "p90", "p99",
    "c0", "c1", "c2", "c3", "c4", "c5",
)  # fmt: skip
_HEX: Final = {name: f"#{number:06x}" for number, name in enumerate(_COLOURS, 1)}
"""matplotlib knows no variables, so each has a number as its colour until `_inline`."""
_VARIABLES: Final = {code: f"var(--{name})" for name, code in _HEX.items()}
_KEPT: Final = frozenset(
    {"fill", "opacity", "stroke", "stroke-linecap", "stroke-width", "text-anchor"}
)
"""The styles of matplotlib that are kept; fonts are the page's."""
_TOLD: Final = "told:"
"""Begins the id of what has a title; matplotlib's own ids have no colon."""
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none", "svg.hashsalt": "kvmq", "text.parse_math": False, "font.size": 11.5,
    "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False,
    "axes.edgecolor": _HEX["rule"], "axes.linewidth": 1.0, "axes.axisbelow": True,
    "axes.xmargin": 0.0, "grid.color": _HEX["line"], "grid.linewidth": 1.0,
    "xtick.bottom": False, "xtick.labelcolor": _HEX["soft"], "xtick.minor.bottom": False,
    "ytick.left": False, "ytick.labelcolor": _HEX["soft"], "ytick.minor.left": False,
    "lines.solid_capstyle": "round", "patch.linewidth": 0.0,
}  # fmt: skip
_WIDE: Final = (960, 250)
_PANEL: Final = (310, 158)
_SIDES: Final = (12, 10, 26)
"""The free pixels of a plot above, to the right and below."""
_LABELS_MAX: Final = 9
_TICKS_MAX: Final = 5
_COLUMN_MAX: Final = 40
_MS_TICKS: Final = (
    1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000,
    8_640_000_000,
)  # fmt: skip
Text = Callable[[float], str]


class Series(NamedTuple):
    """Values of one name in a colour, one for each column or x."""

    name: str
    colour: str
    values: Sequence[float]


@mpl.rc_context()
def columns(
    title: str, labels: Sequence[str], series: Sequence[Series], ticks: Sequence[float], text: Text
) -> Markup:
    """A column for each label, of the series on top of each other; `text` says a value."""
    figure, axes = _axes(_WIDE, 78, ticks, text)
    thick = min(0.86, _COLUMN_MAX * len(labels) / _WIDE[0])
    base = [0.0] * len(labels)
    for one in series:
        at = [i for i, value in enumerate(one.values) if value > 0]
        # A value too small to be seen is drawn a little larger.
        tall = [max(one.values[i], ticks[-1] / 500) for i in at]
        colour = _HEX[one.colour]
        bars = axes.bar(at, tall, thick, [base[i] for i in at], color=colour, clip_on=False)
        for i, bar in zip(at, bars, strict=True):
            bar.set_gid(f"{_TOLD}{labels[i]} · {one.name}: {text(one.values[i])}")
            base[i] += one.values[i]
    every = ceil(len(labels) / _LABELS_MAX)
    axes.set_xticks(range(0, len(labels), every), labels[::every])
    axes.set_xlim(-0.5, len(labels) - 0.5)
    return _inline(figure, title)


@mpl.rc_context()
def panel(
    title: str, xs: Sequence[float], mark: Text, series: Sequence[Series],
    ticks: Sequence[float], text: Text, *, is_log: bool = False,
) -> Markup:  # fmt: skip
    """Lines over rising `xs`, small; `mark` says an x. A line that is alone has its area filled."""
    figure, axes = _axes(_PANEL, 62, ticks, text, is_log=is_log)
    # A stroke without length is a dot: its ends are round.
    repeated, width = (1, 1.7) if len(xs) > 1 else (2, 5.0)
    for one in series:
        # A logarithmic axis has no place for 0 and below, and ends with the largest tick.
        ys = [min(max(y, ticks[0]), ticks[-1]) for y in one.values]
        axes.plot(
            [*xs] * repeated, ys * repeated, color=_HEX[one.colour], linewidth=width,
            clip_on=False, gid=_TOLD + one.name,
        )  # fmt: skip
        if len(series) == 1:
            corners = [*xs, xs[-1], xs[0]], [*ys, ticks[0], ticks[0]]
            axes.fill(*corners, _HEX[one.colour], alpha=0.16, clip_on=False)
    at = [xs[0] + x for x in marks_to(xs[-1] - xs[0])]
    axes.set_xticks(at, [mark(x) for x in at])
    axes.set_xlim(xs[0], max(xs[-1], xs[0] + 1))
    return _inline(figure, title)


def even_ticks(most: float, parts: int = 4) -> list[float]:
    """From 0 to a round number that is not below `most`."""
    found = MaxNLocator(parts, steps=[1, 2, 2.5, 5, 10]).tick_values(0, most or 1.0)
    return [float(tick) for tick in found]


def byte_ticks(most: float) -> list[float]:
    """Ticks from 0 to a number of bytes that is not below `most`, round in the unit in which it is
    written.
    """
    unit = 1.0
    while most / unit >= 1024:
        unit *= 1024
    return [tick * unit for tick in even_ticks(max(most, 1) / unit)]


def time_ticks(least: float, most: float) -> list[float]:
    """Milliseconds for a logarithmic axis, as people count times."""
    low = max((t for t in _MS_TICKS if t <= least), default=1)
    high = next((t for t in _MS_TICKS if t >= most and t > low), _MS_TICKS[-1])
    return [float(t) for t in _MS_TICKS if low <= t <= high]


def marks_to(last: float) -> list[float]:
    """Whole numbers from 0 on, evenly, four at most: where an axis of x has marks."""
    found = MaxNLocator(3, steps=[1, 2, 5, 10], integer=True).tick_values(0, max(last, 1))
    return [float(x) for x in found if x <= last]


def _axes(
    size: tuple[int, int], left: int, ticks: Sequence[float], text: Text, *, is_log: bool = False
) -> tuple[Figure, Axes]:
    """The axes of a plot, `left` pixels from its left side, with an axis of these ticks."""
    (width, height), (top, right, bottom) = size, _SIDES
    mpl.rcdefaults()
    mpl.rcParams.update(_SETTINGS)
    # SVG has 72 pixels to the inch.
    figure = Figure((width / 72, height / 72), frameon=False)
    axes = figure.add_axes((
        left / width, bottom / height,
        (width - left - right) / width, (height - top - bottom) / height,
    ))  # fmt: skip
    axes.patch.set_visible(False)
    if is_log:
        axes.set_yscale("log")
    shown = ticks[:: ceil(len(ticks) / _TICKS_MAX)]
    axes.set_yticks(shown, [text(tick) for tick in shown])
    axes.set_ylim(ticks[0], ticks[-1])
    axes.grid(axis="y", clip_on=False)
    return figure, axes


def _inline(figure: Figure, title: str) -> Markup:
    """The drawn figure, as a part of the page."""
    written = StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())  # noqa: S314 # matplotlib's, just now
    for element in list(root):
        if not element.tag.endswith("}g"):
            root.remove(element)  # metadata and a style sheet
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        element.text, element.tail = (element.text or "").strip(), ""
        for rule in element.attrib.pop("style", "").split("; "):
            name, _, value = rule.partition(": ")
            if name in _KEPT:
                element.set(name, _VARIABLES.get(value, value))
        told = element.attrib.pop("id", "")
        if told.startswith(_TOLD):
            said = ElementTree.Element("title")
            said.text = told.removeprefix(_TOLD)
            element.insert(0, said)
    root.attrib = {
        "class": "plot", "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": title,
    }  # fmt: skip
    return Markup(ElementTree.tostring(root, encoding="unicode"))
