"""SVG: the plots of a page, drawn by hand.

The idea: three kinds do: stacked columns over days, lines over days in small panels, and bars in
the cells of a table. They take their colours from classes of the page, so that they are right by
day, by night and on paper; what a column or a point says stands in its title.

Invariant: every text is escaped; a plot of nothing is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from math import floor, log10
from typing import Final, NamedTuple

_WIDTH: Final = 960
_HEIGHT: Final = 250
_LEFT: Final = 78
_RIGHT: Final = 10
_TOP: Final = 12
_BOTTOM: Final = 26
_PANEL: Final = (310, 158)
_PANEL_LEFT: Final = 62
_COLUMN_MAX: Final = 40
_LABELS: Final = 9
_STEPS: Final = (1, 2, 2.5, 5, 10)
_UNIT: Final = 1024
_MS_TICKS: Final = (
    1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000,
    8_640_000_000,
)  # fmt: skip
_MS_TICKS_MAX: Final = 5
Text = Callable[[float], str]


class Series(NamedTuple):
    """Values of one name, in one colour: a class of the page."""

    name: str
    colour: str
    values: Sequence[float]


class Line(NamedTuple):
    """Points of one name, rising by x; `is_filled`: with the area below."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    is_filled: bool = False


class Scale(NamedTuple):
    """An axis: where its ticks are, how they are written, where a value lies (0 to 1)."""

    ticks: Sequence[float]
    text: Text
    at: Callable[[float], float]


def linear(most: float, text: Text, steps: int = 4) -> Scale:
    """From 0 to a round number that is not below `most`."""
    most = most or 1.0
    rough = most / steps
    power = 10.0 ** floor(log10(rough))
    step = next(power * s for s in _STEPS if power * s >= rough * 0.999)
    return _even(step, most, text)


def binary(most: float, text: Text, steps: int = 4) -> Scale:
    """The same for bytes: round in the unit that they are written in."""
    unit = 1.0
    while most / unit >= _UNIT:
        unit *= _UNIT
    found = linear(max(most, 1) / unit, text, steps)
    return _even(found.ticks[1] * unit, most, text)


def _even(step: float, most: float, text: Text) -> Scale:
    ticks = [0.0]
    while ticks[-1] < most * 0.999 or len(ticks) == 1:
        ticks.append(step * len(ticks))
    top = ticks[-1]
    return Scale(ticks, text, lambda value: value / top)


def times(least: float, most: float, text: Text) -> Scale:
    """Milliseconds, by their logarithms."""
    low = max((t for t in _MS_TICKS if t <= max(least, 1)), default=1)
    high = next((t for t in _MS_TICKS if t >= most and t > low), _MS_TICKS[-1])
    ticks = [t for t in _MS_TICKS if low <= t <= high]
    every = -(-len(ticks) // _MS_TICKS_MAX)
    span = log10(high) - log10(low)

    def at(value: float) -> float:
        return min(max((log10(max(value, low)) - log10(low)) / span, 0.0), 1.0)

    return Scale(ticks[::every], text, at)


def columns(title: str, labels: Sequence[str], series: Sequence[Series], scale: Scale) -> str:
    """Columns, one for each label, of the series on top of each other."""
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    slot = width / len(labels)
    thick = min(slot * (0.82 if slot > 5 else 0.94), _COLUMN_MAX)
    out = [_open(title, _WIDTH, _HEIGHT), *_grid(scale, _LEFT, _WIDTH - _RIGHT, _TOP, height)]
    for i, label in enumerate(labels):
        base, x = 0.0, _LEFT + slot * (i + 0.5) - thick / 2
        for one in series:
            value = one.values[i]
            if value <= 0:
                continue
            low, high = scale.at(base), scale.at(base + value)
            base += value
            y, tall = _TOP + height * (1 - high), height * (high - low)
            told = f"{label} · {one.name}: {scale.text(value)}"
            out.append(
                f'<rect class="{one.colour}" x="{x:.1f}" y="{y:.1f}" width="{thick:.1f}" '
                f'height="{max(tall, 0.4):.1f}"><title>{escape(told)}</title></rect>'
            )
    every = -(-len(labels) // _LABELS)
    marks = [(_LEFT + slot * (i + 0.5), labels[i]) for i in range(0, len(labels), every)]
    return "".join([*out, *_below(marks, _HEIGHT), "</svg>"])


def panel(
    title: str, lines: Sequence[Line], scale: Scale, marks: Sequence[tuple[float, str]]
) -> str:
    """Lines over one axis of time, small; `marks` are what stands below it, and where."""
    wide, tall = _PANEL
    left, height = _PANEL_LEFT, tall - _TOP - _BOTTOM
    every = [x for line in lines for x, _ in line.points] + [x for x, _ in marks]
    low, high = min(every), max(every)
    span = (high - low) or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = left + (wide - left - _RIGHT) * (point[0] - low) / span
        return x, _TOP + height * (1 - scale.at(point[1]))

    out = [_open(title, wide, tall), *_grid(scale, left, wide - _RIGHT, _TOP, height)]
    for line in lines:
        out += _line(line, [place(point) for point in line.points], _TOP + height)
    below = [(place((x, 0))[0], text) for x, text in marks]
    return "".join([*out, *_below(below, tall), "</svg>"])


def _line(line: Line, points: Sequence[tuple[float, float]], floor_y: float) -> Iterator[str]:
    name = f"<title>{escape(line.name)}</title>"
    if len(points) == 1:
        x, y = points[0]
        yield f'<circle class="{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5">{name}</circle>'
        return
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    if line.is_filled:
        area = f"{path}L{points[-1][0]:.1f} {floor_y:.1f}L{points[0][0]:.1f} {floor_y:.1f}Z"
        yield f'<path class="area {line.colour}" d="{area}"/>'
    yield f'<path class="line {line.colour}" d="{path}">{name}</path>'


def bar(parts: Iterable[tuple[str, float]], told: str, width: int = 150) -> str:
    """A bar in a cell: colours, each with its share of the whole width."""
    out, x = [_open(told, width, 10, "bar")], 0.0
    for colour, share in parts:
        wide = share * width
        out.append(f'<rect class="{colour}" x="{x:.1f}" y="0" width="{wide:.1f}" height="10"/>')
        x += wide
    return "".join([*out, "</svg>"])


def strip(values: Sequence[float], colour: str, told: str, width: int = 170) -> str:
    """Columns in a cell, one a day."""
    most, slot = max(values), width / len(values)
    thick = max(min(slot * 0.8, 8), 0.8)
    out = [_open(told, width, 18, "bar")]
    for i, value in enumerate(values):
        if value:
            tall = max(17 * value / most, 1.5)
            out.append(
                f'<rect class="{colour}" x="{slot * i:.1f}" y="{18 - tall:.1f}" '
                f'width="{thick:.1f}" height="{tall:.1f}"/>'
            )
    return "".join([*out, "</svg>"])


def spaced(first: float, last: float, most: int) -> list[float]:
    """Whole numbers from one to another, evenly, so many at most: where marks go."""
    step = next(
        10**power * s
        for power in range(9)
        for s in (1, 2, 5)
        if (last - first) / (10**power * s) <= most - 1
    )
    found, at = [], first
    while at <= last:
        found.append(at)
        at += step
    return found


def _open(title: str, width: int, height: int, kind: str = "plot") -> str:
    told = escape(title, quote=True)
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{told}">'
    )


def _grid(scale: Scale, left: float, right: float, top: float, height: float) -> Iterator[str]:
    for i, tick in enumerate(scale.ticks):
        y = top + height * (1 - scale.at(tick))
        kind = "axis" if i == 0 else "grid"
        yield f'<line class="{kind}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        text = escape(scale.text(tick))
        yield f'<text class="tick end" x="{left - 8}" y="{y + 3.5:.1f}">{text}</text>'


def _below(marks: Iterable[tuple[float, str]], height: int) -> Iterator[str]:
    for x, text in marks:
        yield f'<text class="tick mid" x="{x:.1f}" y="{height - 7}">{escape(text)}</text>'
