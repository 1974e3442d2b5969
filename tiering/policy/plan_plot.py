"""Plan plot: a plan as a picture: each alternative's cost month by month, and the bytes by tier.

The idea: two panels. Left, the cost of each coming month, a line for each alternative; right, the
bytes in each tier at the end of the last one, a bar for each. This policy is drawn thicker.

Invariant: no plan needs this module; matplotlib is imported when a plot is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tiering.errors import ExtraMissing
from tiering.policy.plan import Plan
from tiering.policy.prices import GB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
