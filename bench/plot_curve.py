"""Draws how the rate of popping holds over millions of acks, for docs/pop.md.

python -m bench.plot_curve docs/pop-curve.svg        # needs the extra `plot`
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bench.figure import Options
from bench.popping import measure_curve


def main() -> None:
    """Measure, and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.plot_curve", description=main.__doc__)
    parser.add_argument("target", type=Path, help="the picture: .svg or .png")
    parser.add_argument("--messages", type=int, help="how many are acked first (5,000,000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        curve, _ = measure_curve(Path(folder), Options(messages=args.messages))
    draw(curve, args.target)


def draw(curve: list[tuple[int, float, int]], target: Path) -> None:
    """Draw a curve as `measure_curve` gives it."""
    # Here, because it is an extra that only this needs.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    free = [(acked / 1e6, rate / 1e3) for acked, rate, held in curve if not held]
    held = [(acked / 1e6, rate / 1e3) for acked, rate, held in curve if held]
    axes.plot(*zip(*free, strict=True), marker="o", label="nothing else under lock")
    axes.plot(
        *zip(*held, strict=True), marker="s", label=f"{curve[-1][2] / 1e6:.1f} M messages locked"
    )
    axes.set_xlabel("million messages acked before")
    axes.set_ylabel("thousand messages a second")
    axes.set_title("pop(32) + ack_batch(32), one thread, locks persisted, 128 B")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower left")
    figure.savefig(target)


if __name__ == "__main__":
    main()
