"""Puts small faults into a copy of the source, one at a time, and tells which of them tests notice.

The copy is a temporary folder; the checkout is only read. The tests of a fault run once without it
first, since a test that fails anyway notices nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.mutants.faults import ROOT, Fault, problems, put_in, read_all

COPIED: Final = ("kvstore", "tiering", "pyspark_kvmq", "tests", "bench", "docs")
COPIED_FILES: Final = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "Makefile")
NOTICED, MISSED, BROKEN = "noticed", "not noticed", "not tried"
TIME_FACTOR: Final = 5
TIME_MIN_S: Final = 120.0
"""A fault may make tests hang: they may take TIME_FACTOR times as long as without, or this."""
TESTS_FAILED: Final = 1


class Outcome(NamedTuple):
    """The tests' verdict on one fault."""

    room: str
    fault: Fault
    verdict: str
    detail: str


class Ran(NamedTuple):
    """One run of pytest. `code` is None where its time ran out."""

    code: int | None
    seconds: float
    last_line: str


@click.command()
@click.argument("chosen", nargs=-1)
@click.option("--list", "listing", is_flag=True, help="Only list the faults.")
@click.option("--json", "as_json", is_flag=True, help="A document for programs.")
def mutants(chosen: tuple[str, ...], listing: bool, as_json: bool) -> None:
    """Try the faults of the rooms CHOSEN, or those whose names contain CHOSEN; default all."""
    asked = _choose(chosen)
    if listing:
        for room, fault in asked:
            click.echo(f"{room}: {fault.name} ({fault.file})")
        return
    outcomes = []
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="kvmq-mutants-") as folder:
        copy = _copy(Path(folder))
        with Progress(console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("faults", total=len(asked))
            for outcome in _try_all(asked, copy):
                outcomes.append(outcome)
                if not as_json:
                    console.print(f"{outcome.verdict}: {outcome.fault.name} {outcome.detail}",
                                  markup=False, highlight=False)  # fmt: skip
                progress.advance(task)
    if as_json:
        click.echo(msgspec.json.encode([outcome._asdict() for outcome in outcomes]).decode())
    else:
        _show(outcomes)
    if any(_is_surprise(outcome) for outcome in outcomes):
        sys.exit(1)


def _choose(chosen: tuple[str, ...]) -> list[tuple[str, Fault]]:
    rooms = read_all()
    everything = [(room, fault) for room, faults in rooms.items() for fault in faults]
    asked = [
        (room, fault)
        for room, fault in everything
        if not chosen or room in chosen or any(text in fault.name for text in chosen)
    ]
    if not asked:
        raise click.UsageError(f"nothing is called {' '.join(chosen)}; rooms: {' '.join(rooms)}")
    return asked


def _copy(folder: Path) -> Path:
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def _try_all(asked: list[tuple[str, Fault]], copy: Path) -> Iterator[Outcome]:
    without: dict[tuple[str, ...], Ran] = {}
    for room, fault in asked:
        found = problems(fault, copy)
        if found:
            yield Outcome(room, fault, BROKEN, "; ".join(found))
            continue
        if fault.tests not in without:
            without[fault.tests] = _run(fault.tests, copy, None)
        before = without[fault.tests]
        if before.code != 0:
            yield Outcome(room, fault, BROKEN, f"its tests fail without it: {before.last_line}")
            continue
        text = put_in(fault, copy)
        try:
            _compile(copy, fault.file)
            ran = _run(fault.tests, copy, max(TIME_MIN_S, TIME_FACTOR * before.seconds))
        finally:
            (copy / fault.file).write_text(text, encoding="utf-8")
            _compile(copy, fault.file)
        yield Outcome(room, fault, *_judge(ran))


def _compile(copy: Path, file: str) -> None:
    """Makes Python take a file as it is now."""
    path = copy / file
    # Python compares sizes and seconds only, which two versions of a file may share.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()
    if path.suffix == ".pyx":
        built = [sys.executable, "setup.py", "build_ext", "-i"]
        subprocess.run(built, cwd=copy, check=True, capture_output=True)


def _judge(ran: Ran) -> tuple[str, str]:
    if ran.code is None:
        return NOTICED, f"(hung for {ran.seconds:.0f} s)"
    if ran.code == 0:
        return MISSED, ""
    if ran.code == TESTS_FAILED or ran.code < 0:
        return NOTICED, f"({ran.last_line})"
    return BROKEN, f"pytest ended with {ran.code}: {ran.last_line}"


def _run(tests: tuple[str, ...], copy: Path, limit_s: float | None) -> Ran:
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=limit_s,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ran(None, time.monotonic() - began, "")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    failed = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "")
    return Ran(done.returncode, time.monotonic() - began, failed[:200] or "".join(lines[-1:]))


def _is_surprise(outcome: Outcome) -> bool:
    """Not tried, not noticed without an explanation, or noticed in spite of one."""
    if outcome.verdict == BROKEN:
        return True
    return (outcome.verdict == MISSED) != bool(outcome.fault.unnoticed)


def _show(outcomes: list[Outcome]) -> None:
    table = Table("room", "faults", "noticed", "%")
    rooms = sorted({outcome.room for outcome in outcomes})
    for room in [*rooms, "all"]:
        verdicts = Counter(o.verdict for o in outcomes if room in {o.room, "all"})
        total = verdicts.total()
        noticed = verdicts[NOTICED]
        table.add_row(room, str(total), str(noticed), f"{100 * noticed / total:.0f}")
    Console().print(table)
    for outcome in filter(_is_surprise, outcomes):
        click.echo(f"{outcome.verdict}: {outcome.room}: {outcome.fault.name} {outcome.detail}")


if __name__ == "__main__":
    mutants()
