"""Texts: numbers, sizes, times and names as people read them on a page.

The idea: of a large number three digits say enough, of bytes one decimal of their unit. Amounts of
money in one column have as many decimals as the largest of them needs, so that they stand under
each other.

Invariant: of a text out of a message at most 72 characters are shown, and no control characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from math import floor, log10
from typing import Final

_NAME_MAX: Final = 72
_MONTHS: Final = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip
"""The page is in English, whatever the locale is."""
_SHORT: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIMES: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_DECIMALS_MAX: Final = 6
MINUS: Final = "\u2212"
_RAISED: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def name(text: str) -> str:
    """A name out of a message."""
    shown = text if len(text) <= _NAME_MAX else f"{text[: _NAME_MAX - 1]}…"
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def count(number: int) -> str:
    """A number of things, whole."""
    return f"{number:,}".replace("-", MINUS)


def short(number: float) -> str:
    """A number in three digits: 1,234,567 is "1.23 M"."""
    for unit, letter in _SHORT:
        if abs(number) >= unit:
            return f"{_three(number / unit)} {letter}"
    return _three(number)


def _three(number: float) -> str:
    decimals = 0 if number == int(number) else max(0, 2 - floor(log10(max(abs(number), 0.01))))
    return f"{number:.{decimals}f}"


def size(number: float) -> str:
    """Bytes: 1,234,567 is "1.2 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(number) < 1024:
            return f"{number:,.0f} B" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} PiB"


def tick(number: float) -> str:
    """Bytes that are round: "512 KiB"."""
    return size(number).replace(".0 ", " ")


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent."""
    if not whole:
        return "–"
    found = 100 * part / whole
    return f"{found:.0f} %" if found >= 9.95 or found == 0 else f"{found:.1f} %"


def decimals(amounts: Iterable[float]) -> int:
    """How many decimals a column of money needs for three digits of the largest."""
    most = max(map(abs, amounts), default=0.0)
    if most == 0 or most >= 10:
        return 2
    return min(_DECIMALS_MAX, 2 - floor(log10(most)))


def money(amount: float, places: int) -> str:
    """An amount; one that is too small for its decimals is written as below the smallest."""
    if 0 < amount < 0.5 * 10**-places:
        return f"<\u2009{10**-places:.{places}f}"
    return f"{amount:,.{places}f}"


def amount(number: float) -> str:
    """A round amount of money."""
    if number >= 1000:
        return f"{number:,.0f}"
    if 0 < number < 10**-_DECIMALS_MAX:
        # Nobody counts more zeros than these.
        digits, _, power = f"{number:.2e}".partition("e")
        return f"{float(digits):g}\u2009·\u200910{str(int(power)).translate(_RAISED)}"
    return format(Decimal(f"{number:.3g}"), "f")


def delay(ms: float) -> str:
    """Milliseconds: 90,000 is "1.5 min"."""
    if ms < 0:
        return MINUS + delay(-ms)
    for unit, letter in _TIMES:
        if ms >= unit:
            found = ms / unit
            return f"{found:.0f} {letter}" if found >= 10 or found == int(found) else (
                f"{found:.1f} {letter}"
            )  # fmt: skip
    return f"{ms:.0f} ms"


def day(of: date, *, with_year: bool = False) -> str:
    """A day: "7 Nov"."""
    return f"{of.day} {month(of)}" if with_year else f"{of.day} {_MONTHS[of.month - 1]}"


def month(of: date) -> str:
    """A month: "Nov 2026"."""
    return f"{_MONTHS[of.month - 1]} {of.year}"


def instant(ms: int) -> str:
    """A moment, UTC."""
    found = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{day(found.date(), with_year=True)}, {found:%H:%M} UTC"


def plural(number: int, one: str) -> str:
    """A number of things with its word."""
    return f"{count(number)} {one if number == 1 else one + 's'}"
