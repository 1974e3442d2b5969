"""Plots: draws columns and lines, by matplotlib, as SVG that is part of the page.

The idea: matplotlib draws, and `_inline` fits its SVG into the page. A colour becomes a variable of
the style sheet, so that it is right by day, by night and on paper. The text of a column or a line
becomes its title. Ids, styles and metadata go.

Invariants: a plot refers to nothing outside itself; the same values make the same bytes, whatever
the reader's matplotlibrc says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """The same for bytes: round in the unit that they are written in."""
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
