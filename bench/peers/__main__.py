"""The command: `python -m bench.peers --help`. Rounds, medians, and the page."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import click

from bench.isolated import end_group
from bench.peers import page
from bench.peers.installing import ROOT, Runner, runners
from bench.peers.work import WORKS, Figures, Rows

_TIMEOUT_S = 900
_FILES_MAX = 1 << 17
"""RocketMQ has open files for each of 40,000 queues."""
_FULL_MESSAGES, _FULL_ROUNDS = 200_000, 5
"""An hour."""


@click.command()
@click.option("--messages", type=click.IntRange(min=1000), default=_FULL_MESSAGES,
              show_default=True, help="The most that one load has.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=_FULL_ROUNDS, show_default=True)
@click.option("--peer", "peers", multiple=True, help="Only these, and kvmq.")
@click.option("--work", "works", multiple=True, type=click.Choice(tuple(WORKS)), help="Only these.")
@click.option("--dir", "place", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where stores are made; default the temporary folder.")  # fmt: skip
@click.option("--page/--no-page", "writes", default=True, help="Write docs/benchmarks.md.")
def bench_peers(
    messages: int, rounds: int, peers: tuple[str, ...], works: tuple[str, ...],
    place: Path | None, writes: bool,
) -> None:  # fmt: skip
    """Measure kvmq and its peers side by side, and write docs/benchmarks.md."""
    most = max(resource.getrlimit(resource.RLIMIT_NOFILE)[1], _FILES_MAX)
    # Only root may have more than the limit. RocketMQ's files then fail over 5,000 topics.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begun, load = datetime.now(UTC), os.getloadavg()[0]
    found = {n: r for n, r in runners().items() if not peers or n in (*peers, "kvmq")}
    runs: dict[str, dict[str, list[Figures]]] = {name: {} for name in found}
    for number in range(rounds):
        for work in works or tuple(WORKS):
            for name, runner in found.items():
                if runner.works and work not in runner.works:
                    continue
                rows = _once(runner, work, messages, place)
                for row, figures in rows.items():
                    runs[name].setdefault(row, []).append(figures)
                click.echo(f"{number + 1} {work} {name}: {rows}", err=True)
    results = {
        name: {row: _medians(some) for row, some in by_row.items()} for name, by_row in runs.items()
    }
    facts = page.facts_of("make bench-peers", begun, load, f"{messages:,}, {rounds}")
    facts["Open files, at most"] = f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}"
    (ROOT / "bench/out").mkdir(parents=True, exist_ok=True)
    path = ROOT / "bench/out/peers.json"
    path.write_text(json.dumps({"facts": facts, "runs": runs}, indent=2), encoding="utf-8")
    if writes and works and set(works) <= set(page.TIME_ROWS):
        page.write_in_time(facts, results)
    elif writes:
        full = messages >= _FULL_MESSAGES and rounds >= _FULL_ROUNDS and not peers and not works
        commands = {name: (r.command, r.version) for name, r in found.items()}
        page.write(facts, commands, results, full)


def _once(runner: Runner, work: str, messages: int, place: Path | None) -> Rows:
    """One work in a process of its own; where it fails, which is told, what it printed before."""
    with tempfile.TemporaryDirectory(prefix="kvmq-peer-", dir=place) as folder:
        try:
            returned, stdout, stderr = _ran(runner, work, folder, messages)
        except subprocess.TimeoutExpired as e:
            click.echo(f"{shlex.join(runner.command)} {work}: {e}", err=True)
            return {}
    if returned:
        click.echo(f"{shlex.join(runner.command)} {work}:\n{stderr[-2000:]}", err=True)
    last = stdout.strip().rpartition("\n")[2]
    rows: Rows = json.loads(last) if last.startswith("{") else {}
    return rows


def _ran(runner: Runner, work: str, folder: str, messages: int) -> tuple[int, str, str]:
    """How it ended, and what it printed; the servers that it started end with it."""
    with subprocess.Popen(
        [*runner.command, work, folder, str(messages)],
        cwd=ROOT,
        env={**os.environ, **runner.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed = process.communicate(timeout=_TIMEOUT_S)
        finally:
            end_group(process.pid)
        return (process.returncode, *printed)


def _medians(runs: list[Figures]) -> Figures:
    names = {name for run in runs for name in run}
    return {name: median(run[name] for run in runs if name in run) for name in names}


if __name__ == "__main__":
    bench_peers(prog_name="python -m bench.peers")
