"""The command line of the benchmarks: `python -m bench --help`."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from bench.figure import Options, Result
from bench.runner import run_all
from bench.scenarios import SCENARIOS, Scenario
from kvstore.cli.terminal.output import Output, output_option


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="Only name the scenarios.")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True,
              help="Runs of each quick scenario; figures are medians.")  # fmt: skip
@click.option("--size", type=click.IntRange(min=0), help="Bytes of a body.")
@click.option(
    "--messages", type=click.IntRange(min=1), help="How many; targets are for the default."
)
@click.option("--topics", type=click.IntRange(min=1))
@click.option("--queues", type=click.IntRange(min=1), help="Of each topic.")
@click.option("--tags", type=click.IntRange(1, 8), default=8, show_default=True,
              help="Different tags, where the index's size is measured.")  # fmt: skip
@click.option("--dir", "place", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where stores are made; default the temporary folder.")  # fmt: skip
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path),
              default=Path("bench/out"), show_default=True, help="For the JSON.")  # fmt: skip
@output_option
def bench(
    out: Output, names: tuple[str, ...], listing: bool, runs: int, size: int | None,
    messages: int | None, topics: int | None, queues: int | None, tags: int, place: Path | None,
    folder: Path,
) -> None:  # fmt: skip
    """Run the benchmarks NAMES (default: all) and show what was measured beside its target."""
    chosen = _choose(names)
    if listing:
        out.table(("name", "what"), [(scenario.name, scenario.help) for scenario in chosen])
        return
    options = Options(size=size, messages=messages, topics=topics, queues=queues, tags=tags)
    results: list[Result] = []
    for some in run_all(chosen, options, runs, place):
        results += some
        if not out.json:
            for result in some:
                click.echo(_line(result), err=True)
    report = {"machine": _machine(), "options": options, "results": results}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    if out.json:
        out.document(report)
        return
    out.table(("figure", "measured", "target", "", "runs"), [_row(result) for result in results],
              right=("measured", "target"))  # fmt: skip
    out.text(f"written to {path}")


def _choose(names: tuple[str, ...]) -> list[Scenario]:
    unknown = set(names) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        known = ", ".join(scenario.name for scenario in SCENARIOS)
        raise click.UsageError(f"no scenario {', '.join(sorted(unknown))}; there are {known}")
    return [scenario for scenario in SCENARIOS if not names or scenario.name in names]


def _machine() -> dict[str, object]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
    }


def _value(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()


def _line(result: Result) -> str:
    return f"{result.figure.name}: {_value(result.figure.value, result.figure.unit)}"


def _row(result: Result) -> tuple[str, ...]:
    figure = result.figure
    sign = "≥" if figure.better == "higher" else "≤"
    target = f"{sign} {_value(figure.target, figure.unit)}" if figure.target is not None else ""
    verdict = {None: "", True: "reached", False: "short"}[result.reached]
    spread = f"{len(result.runs)}"
    if len(result.runs) > 1:
        spread += f": {_value(min(result.runs), '')} to {_value(max(result.runs), '')}"
    return figure.name, _value(figure.value, figure.unit), target, verdict, spread


if __name__ == "__main__":
    bench(prog_name="python -m bench")
