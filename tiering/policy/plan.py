"""Plan: the moves that a policy makes now, and its monthly cost and savings, beside other policies.

The idea: the data stored today, and the data that will come in each month at the rate so far, grow
older under each way of keeping them. The cost is the bytes in each tier at the end of each month,
times the prices. A way of keeping is three ages (end of hot, of warm, of cold) for each class. So
an alternative is a change of ages ("all hot", "hot for half as long"), and pure arithmetic.

Each alternative is computed as if it had been in force from the beginning: deleted data does not
come back, and the data held today counts.

A plan can be drawn: left, the cost of each coming month, a line for each alternative, this policy's
thicker; right, the bytes in each tier at the end of the last one, a bar for each.

Invariants: a plan is pure, and JSON-able as it is; bytes of archives are `ratio` times those of
their records, measured on the existing archives, or assumed, and the plan says which; matplotlib is
imported only when a plan is drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from math import ceil, inf, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from tiering.errors import ExtraMissing
from tiering.policy.policy import GB, MONTH, Policy, Prices
from tiering.policy.schedule import Agenda, Archived, Part, Segment, schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIOS: Final = {"zstd": 0.27, "lz4": 0.47}
"""Bytes of an archive for one byte of records, where no archive exists yet: JSON of about 1 KB a
message.
"""
MONTHS: Final = 12
_MONTH_MS: Final = MONTH * 1000
_SPAN_MIN_MS: Final = 3_600_000
"""Data that came in within less than an hour says nothing about a month."""
_MEASURED_MIN: Final = 1 << 20
"""The least raw bytes of archives whose ratio counts as measured: 1 MiB."""
_PART_BYTES: Final = 16 << 20
"""Bytes that one request uploads at most."""


class Amounts(msgspec.Struct, frozen=True):
    """Bytes in each tier."""

    hot: float = 0
    warm: float = 0
    cold: float = 0


class Month(msgspec.Struct, frozen=True):
    """The end of a month (0: today, after the due moves), and the month's cost. `storage`,
    `requests` and `transfer` add up to `cost`.
    """

    month: int
    bytes: Amounts
    storage: float
    requests: float
    transfer: float
    cost: float


class Alternative(msgspec.Struct, frozen=True):
    """One way of keeping: `months[1:]` are the coming ones. `per_month` is their mean cost,
    `saves_per_month` its difference to keeping everything hot.
    """

    name: str
    what: str
    months: list[Month]
    per_month: float
    saves_per_month: float


class MoveOfPart(msgspec.Struct, frozen=True):
    """One archive that would be made, moved or deleted: `source` is the segment's number or the
    archive's key, `to` its tier, None if it is deleted.
    """

    source: str
    retention_class: str
    to: Literal["warm", "cold"] | None
    bytes: int
    bytes_after: int
    reason: str


class Plan(msgspec.Struct, frozen=True):
    """The result of `make_plan`. Sizes are bytes, costs in `currency`, instants ms.

    `moves` are the moves due now; `before` and `after` are the tiers without and with them. `ratio`
    is measured if `is_ratio_measured`. `bytes_per_month` of records came in so far; 0 if the data
    spans less than an hour. `waits_for_hours` and `held` are the agenda's.
    """

    moves: list[MoveOfPart]
    before: Amounts
    after: Amounts
    ratio: float
    is_ratio_measured: bool
    bytes_per_month: float
    waits_for_hours: bool
    held_segment: int | None
    held_until: int | None
    held_by: str
    upload_seconds: float | None
    currency: str
    alternatives: list[Alternative]


class _Ages(NamedTuple):
    """The ages, ms, at which messages end to be hot, warm, cold; each at least the one before."""

    hot: float
    warm: float
    cold: float


class _Held(NamedTuple):
    """Data that exists already: raw bytes of a class, as old as the newest message among them."""

    ages: _Ages
    raw: int
    newest: int
    cold: bool


class _Comes(NamedTuple):
    """Incoming data: raw bytes of a class each ms."""

    ages: _Ages
    rate: float


def make_plan(
    policy: Policy,
    segments: Sequence[Segment],
    archives: Sequence[Archived],
    *,
    now_ms: int,
    hour: int,
    disk_used: float,
    other_bytes: int = 0,
    ratio: float | None = None,
    read_share: float = 0.0,
    stuck: Callable[[], Collection[int]] = tuple,
) -> Plan:
    """Works a plan out; the arguments are those of `schedule.schedule`.

    `ratio` None: measured, else assumed for the codec. `read_share` of the cold bytes are read each
    month, beside the one reading that verifies each upload.
    """
    agenda = schedule(
        policy,
        segments,
        archives,
        now_ms=now_ms,
        hour=hour,
        disk_used=disk_used,
        other_bytes=other_bytes,
        stuck=stuck,
    )
    found, is_measured = _ratio(policy, archives) if ratio is None else (ratio, False)
    moves = _moves(agenda, archives, found)
    before = _amounts(segments, archives, other_bytes)
    held, comes = _flows(policy, segments, archives)
    view = _View(policy.prices, found, read_share, now_ms)
    uploaded = sum(m.bytes_after for m in moves if m.to == "cold")
    return Plan(
        moves=moves,
        before=before,
        after=_after(before, agenda, moves, archives),
        ratio=found,
        is_ratio_measured=is_measured,
        bytes_per_month=sum(c.rate for c in comes) * _MONTH_MS,
        waits_for_hours=agenda.waits_for_hours,
        held_segment=agenda.held.number if agenda.held else None,
        held_until=agenda.held.until if agenda.held else None,
        held_by=agenda.held.topic if agenda.held else "",
        upload_seconds=uploaded / policy.upload_rate if policy.upload_rate else None,
        currency=policy.prices.currency,
        alternatives=_alternatives(view, held, comes),
    )


# --- the due moves ---------------------------------------------------------------------------


def _ratio(policy: Policy, archives: Iterable[Archived]) -> tuple[float, bool]:
    raw = coded = 0
    for archive in archives:
        raw += archive.raw_bytes
        coded += archive.bytes
    if raw >= _MEASURED_MIN:
        return coded / raw, True
    return RATIOS[policy.codec], False


def _moves(agenda: Agenda, archives: Iterable[Archived], ratio: float) -> list[MoveOfPart]:
    names = {a.key: a.kind.name for a in archives}
    out = []
    for left in agenda.segments:
        for part in left.parts:
            after = 0 if part.to is None else round(part.bytes * ratio)
            move = MoveOfPart(
                str(left.number), part.retention_class, part.to, part.bytes, after, left.reason
            )
            out.append(move)
        if not left.parts:
            out.append(MoveOfPart(str(left.number), "", None, left.bytes, 0, left.reason))
    for moved in agenda.archives:
        size = 0 if moved.to is None else moved.bytes
        out.append(
            MoveOfPart(moved.key, names[moved.key], moved.to, moved.bytes, size, moved.reason)
        )
    return out


def _amounts(
    segments: Iterable[Segment], archives: Iterable[Archived], other_bytes: int
) -> Amounts:
    tiers = {"warm": 0, "cold": 0}
    for archive in archives:
        tiers[archive.tier] += archive.bytes
    return Amounts(other_bytes + sum(s.bytes for s in segments), tiers["warm"], tiers["cold"])


def _after(
    before: Amounts, agenda: Agenda, moves: Iterable[MoveOfPart], archives: Iterable[Archived]
) -> Amounts:
    tiers = {"warm": before.warm, "cold": before.cold}
    was = {a.key: a.tier for a in archives}
    for moved in agenda.archives:
        tiers[was[moved.key]] -= moved.bytes
    for move in moves:
        if move.to is not None:
            tiers[move.to] += move.bytes_after
    return Amounts(before.hot - sum(s.bytes for s in agenda.segments), tiers["warm"], tiers["cold"])


# --- the coming months ------------------------------------------------------------------------


def _flows(
    policy: Policy, segments: Sequence[Segment], archives: Iterable[Archived]
) -> tuple[list[_Held], list[_Comes]]:
    held = []
    totals: dict[_Ages, int] = defaultdict(int)
    # New segments hold the same topics as today's: they leave as late as the slowest topic.
    slowest = max((_or_inf(s.leaves_hot) for s in segments), default=inf)
    for segment in segments:
        hot = inf if not policy.moves else _or_inf(segment.leaves_hot)
        for part in segment.parts:
            held.append(_Held(_ages(part, hot), part.bytes, part.newest, cold=False))
            totals[_ages(part, slowest)] += part.bytes
        if not segment.parts and not policy.moves:
            # Without places there are no classes: all data stays where it is.
            held.append(_Held(_Ages(inf, inf, inf), segment.bytes, segment.newest or 0, cold=False))
            totals[_Ages(inf, inf, inf)] += segment.bytes
    for archive in archives:
        ages = _ages(archive, 0.0)
        is_cold = archive.tier == "cold"
        held.append(_Held(ages, archive.raw_bytes, archive.last_stored_at, cold=is_cold))
    times = [t for s in segments for t in (s.oldest, s.newest) if t is not None]
    span = max(times) - min(times) if times else 0
    if span < _SPAN_MIN_MS:
        return held, []
    return held, [_Comes(ages, total / span) for ages, total in totals.items()]


def _ages(of: Part | Archived, hot: float) -> _Ages:
    kind = of.kind
    cold = max(hot, _or_inf(kind.ends))
    if kind.first == "cold":
        return _Ages(hot, hot, cold)
    return _Ages(hot, min(max(hot, _or_inf(kind.leaves_warm)), cold), cold)


def _or_inf(age: int | None) -> float:
    return inf if age is None else age


def _in_tiers(held: Iterable[_Held], comes: Iterable[_Comes], at_ms: float, now: float) -> Amounts:
    """Raw bytes in each tier at a time."""
    out = [0.0, 0.0, 0.0]
    for piece in held:
        age = at_ms - piece.newest
        tier = next((i for i, end in enumerate(piece.ages) if age <= end), None)
        if tier is not None:
            out[tier] += piece.raw
    for flow in comes:
        begin = 0.0
        for tier, end in enumerate(flow.ages):
            out[tier] += flow.rate * max(0.0, min(at_ms - now, end) - begin)
            begin = max(begin, end)
    return Amounts(*out)


def _gone_cold(held: Iterable[_Held], comes: Iterable[_Comes], at_ms: float, now: float) -> float:
    """Raw bytes that went cold until a time, of those that are not there yet."""
    total = 0.0
    for piece in held:
        if not piece.cold and piece.ages.warm < piece.ages.cold:
            total += piece.raw * (at_ms - piece.newest > piece.ages.warm)
    for flow in comes:
        if flow.ages.warm < flow.ages.cold:
            total += flow.rate * max(0.0, at_ms - now - flow.ages.warm)
    return total


def storage_costs(prices: Prices, stored: Amounts) -> dict[str, float]:
    """The cost of these bytes for a month, by tier."""
    return {
        tier: getattr(stored, tier) / GB * getattr(prices, tier).gb_month
        for tier in Amounts.__struct_fields__
    }


class _View(NamedTuple):
    """The parameters that turn bytes into costs."""

    prices: Prices
    ratio: float
    read_share: float
    now: int

    def month(self, number: int, raw: Amounts, uploaded: float) -> Month:
        """A month in which `uploaded` raw bytes went cold and at whose end there are `raw`."""
        prices, ratio = self.prices, self.ratio
        tiers = Amounts(raw.hot, raw.warm * ratio, raw.cold * ratio)
        storage = sum(storage_costs(prices, tiers).values())
        sent = uploaded * ratio
        # Each part is put, and read back to verify it; a read request is as large as a put.
        read = sent + tiers.cold * self.read_share
        calls = ceil(sent / _PART_BYTES) + ceil(read / _PART_BYTES)
        requests = calls / 1000 * prices.cold.requests
        transfer = read / GB * prices.cold.transfer
        return Month(number, tiers, storage, requests, transfer, storage + requests + transfer)


# --- alternatives ---------------------------------------------------------------------------


def _all_hot(a: _Ages) -> _Ages:
    return _Ages(a.cold, a.cold, a.cold)


def _scaled(by: float) -> Callable[[_Ages], _Ages]:
    return lambda a: _Ages(*(age * by for age in a))


_ALTERNATIVES: Final[tuple[tuple[str, str, Callable[[_Ages], _Ages]], ...]] = (
    ("this policy", "as it is", lambda a: a),
    ("all hot", "no archives, deleted at the same age", _all_hot),
    ("warm only", "as archives on disk, nothing goes cold", lambda a: _Ages(a.hot, a.cold, a.cold)),
    ("cold only", "from hot to cold at once", lambda a: _Ages(a.hot, a.hot, a.cold)),
    (
        "cold sooner",
        "half the time warm",
        lambda a: _Ages(a.hot, a.warm if isinf(a.warm) else (a.hot + a.warm) / 2, a.cold),
    ),
    ("hot half as long", "archives sooner", lambda a: a._replace(hot=a.hot / 2)),
    ("kept half as long", "all durations halved", _scaled(0.5)),
    ("kept twice as long", "all durations doubled", _scaled(2.0)),
)


def _alternatives(view: _View, held: Sequence[_Held], comes: Sequence[_Comes]) -> list[Alternative]:
    out: list[Alternative] = []
    mine = [piece.ages for piece in held] + [flow.ages for flow in comes]
    all_hot = _mean(_months(view, held, comes, _all_hot))
    for name, what, change in _ALTERNATIVES:
        if out and [change(ages) for ages in mine] == mine:
            continue
        months = _months(view, held, comes, change)
        mean = _mean(months)
        out.append(Alternative(name, what, months, mean, all_hot - mean))
    return out


def _months(
    view: _View,
    held: Sequence[_Held],
    comes: Sequence[_Comes],
    change: Callable[[_Ages], _Ages],
) -> list[Month]:
    changed = [piece._replace(ages=change(piece.ages)) for piece in held]
    flows = [flow._replace(ages=change(flow.ages)) for flow in comes]
    out = []
    cold_before = 0.0
    for number in range(MONTHS + 1):
        at = view.now + number * _MONTH_MS
        cold = _gone_cold(changed, flows, at, view.now)
        raw = _in_tiers(changed, flows, at, view.now)
        out.append(view.month(number, raw, cold - cold_before))
        cold_before = cold
    return out


def _mean(months: Sequence[Month]) -> float:
    return sum(month.cost for month in months[1:]) / MONTHS


_COLOURS: Final = {"hot": "#d1495b", "warm": "#edae49", "cold": "#00798c"}
_WIDTH: Final = {True: 3.0, False: 1.2}


def plot_plan(plan: Plan, target: Path) -> None:
    """Draws a plan into a file; the suffix gives the kind (.svg, .png, .pdf).

    Raises `ExtraMissing` without matplotlib.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an extra that only this needs
    except ImportError as e:
        raise ExtraMissing(
            "a plot needs matplotlib, which is not installed: pip install 'kvmq[plot]'", "plot"
        ) from e
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_costs(left, plan)
    _draw_tiers(right, plan)
    figure.savefig(target)


def _draw_costs(axes: Axes, plan: Plan) -> None:
    for i, alternative in enumerate(plan.alternatives):
        axes.plot(
            [month.month for month in alternative.months[1:]],
            [month.cost for month in alternative.months[1:]],
            label=alternative.name,
            linewidth=_WIDTH[i == 0],
        )
    axes.set_xlabel("month from now")
    axes.set_ylabel(f"{plan.currency} a month")
    axes.set_title("What it costs")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def _draw_tiers(axes: Axes, plan: Plan) -> None:
    names = [alternative.name for alternative in plan.alternatives]
    lefts = [0.0] * len(names)
    for tier, colour in _COLOURS.items():
        sizes = [getattr(a.months[-1].bytes, tier) / GB for a in plan.alternatives]
        axes.barh(names, sizes, left=lefts, color=colour, label=tier)
        lefts = [before + size for before, size in zip(lefts, sizes, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("GB")
    axes.set_title(f"Where it is in {plan.alternatives[0].months[-1].month} months")
    axes.grid(visible=True, alpha=0.3, axis="x")
    axes.legend()
