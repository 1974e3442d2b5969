"""The demo's one screen, and its JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from kvstore.cli.demo.space import Space, TierSpace, space_rows, tier_rows
from kvstore.cli.demo.steps import Step
from kvstore.cli.output import Output


class DemoReport(msgspec.Struct):
    """Everything the demo found out."""

    source: str
    folder: str
    steps: list[Step]
    space: Space | None
    seconds: float
    tiers: TierSpace | None = None

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return not any(step.faults for step in self.steps)


def show_demo(out: Output, report: DemoReport) -> None:
    """Print what was shown: steps, space, verdict."""
    if out.json:
        out.document(
            {"ok": report.ok, **msgspec.to_builtins(report)}
            | {"problems": [f"{s.name}: {p}" for s in report.steps for p in s.problems]}
        )
        return
    out.text("")
    out.table(
        ("step", "what was shown", "count", "seconds", "rate", ""),
        [_row(step) for step in report.steps],
        right=("count", "seconds", "rate"),
    )
    if report.space is not None:
        out.text("")
        out.table(
            ("on disk", "bytes a message", "total", ""),
            space_rows(report.space) + (tier_rows(report.tiers) if report.tiers else []),
            right=("bytes a message", "total"),
        )
    out.text("")
    _verdict(out, report)


def _row(step: Step) -> Sequence[object]:
    rate = f"{step.rate:,.0f} {step.unit}/s" if step.rate and step.unit else ""
    return (
        step.name,
        step.shown,
        f"{step.count:,}" if step.count else "",
        f"{step.seconds:.2f}" if step.seconds >= 0.01 else f"{step.seconds:.3f}",
        rate,
        "ok" if not step.faults else "wrong",
    )


def _verdict(out: Output, report: DemoReport) -> None:
    for step in report.steps:
        for problem in step.problems:
            out.text(f"{step.name}: {problem}", fg="red")
        if step.faults > len(step.problems):
            out.text(f"{step.name}: and {step.faults - len(step.problems):,} more", fg="red")
    wrong = sum(step.faults for step in report.steps)
    if wrong:
        out.text(f"{wrong:,} checks failed", fg="red", bold=True)
    else:
        out.text(f"Every check passed, in {report.seconds:.0f} s.", fg="green", bold=True)
    sys.stdout.flush()
