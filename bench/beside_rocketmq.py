"""`make bench-serve`: a served store beside RocketMQ's proxy, in turns, by the same load.

The idea: each round starts both servers, one after the other, on new stores, and gives each the
loads of `grpc_clients`; a figure is the median of all rounds. Targets are of kvmq's figure divided
by RocketMQ's; that of memory is of kvmq's alone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from bench.figure import Figure, combine
from bench.grpc_clients import (
    RATES,
    measure_latency,
    measure_memory,
    measure_receive,
    measure_send,
    warm,
)
from bench.grpc_peer import rocketmq
from bench.peers.page import facts_of, shown, write_served
from bench.rocketmq_broker import rocketmq_jars
from bench.served import Server, served
from kvstore.cli.terminal.output import Output, Report, output_option

_SERVERS: Final[dict[str, Callable[[Path], AbstractContextManager[Server]]]] = {
    "kvmq": served,
    "RocketMQ": rocketmq,
}
_RATIOS: Final = {
    "send, 1 a request": 2.0,
    "cpu of send, 1 a request": 1 / 3,
    "send, 32 a request": 1.5,
    "receive 32 + ack": 2.0,
    "cpu of receive 32 + ack": 1 / 3,
    **{f"end to end at {rate:,}/s, p{percent}": 1.0 for rate in RATES for percent in (50, 99)},
}
"""The targets of kvmq's figure divided by RocketMQ's: the least of a rate, else the most."""
_OWN: Final = {"memory, 1,000 connections": 200.0}
"""The targets of kvmq's figure itself."""
_HEAD: Final = Path(__file__).with_name("beside_rocketmq.md")


class Row(msgspec.Struct, frozen=True):
    """A figure of both servers, and its target if there is one."""

    name: str
    unit: str
    kvmq: float
    rocketmq: float
    ratio: float
    target: str
    reached: bool | None

    @property
    def cells(self) -> tuple[str, ...]:
        """For people."""
        verdict = {None: "", True: "reached", False: "short"}[self.reached]
        figures = (shown(self.kvmq), shown(self.rocketmq), f"{self.ratio:.2f} ×")
        return (self.name, self.unit, *figures, self.target, verdict)


_COLUMNS: Final = ["figure", "unit", *_SERVERS, "ratio", "target", ""]
_LOADS: Final = 4 + len(RATES)
_FULL_MESSAGES, _FULL_ROUNDS = 100_000, 3
"""Ten minutes."""


@click.command()
@click.option("--messages", type=click.IntRange(min=1000), default=_FULL_MESSAGES,
              show_default=True, help="Of each load.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=_FULL_ROUNDS, show_default=True)
@click.option("--size", type=click.IntRange(min=16), default=1024, show_default=True,
              help="Bytes of a body.")  # fmt: skip
@click.option("--dir", "place", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where stores are made; default the temporary folder.")  # fmt: skip
@click.option("--page", "writes", is_flag=True, help="Write the section of docs/benchmarks.md.")
@output_option
def bench_serve(
    out: Output, messages: int, rounds: int, size: int, place: Path | None, writes: bool
) -> None:
    """Measure a served store and RocketMQ's proxy in turns; show medians beside their targets."""
    begun, load = datetime.now(UTC), os.getloadavg()[0]
    runs: dict[str, list[list[Figure]]] = {name: [] for name in _SERVERS}
    with out.progress() as report:
        for number in range(rounds):
            for name, start in _SERVERS.items():
                step = _Steps(report, f"round {number + 1}, {name}")
                with tempfile.TemporaryDirectory(dir=place) as folder:
                    step("starting")
                    with start(Path(folder) / "s") as server:
                        runs[name].append(list(_figures(server, messages, size, step)))
    rows = _rows(runs)
    facts = facts_of("make bench-serve", begun, load, f"{messages:,}, {rounds}")
    facts["RocketMQ"] = next(rocketmq_jars().glob("rocketmq-proxy-*.jar")).stem
    if writes:
        head = _HEAD.read_text(encoding="utf-8")
        full = messages >= _FULL_MESSAGES and rounds >= _FULL_ROUNDS
        lines = [(row.name, row.cells[1:]) for row in rows]
        write_served(head, facts, _COLUMNS[1:], lines, full=full)
    if out.json:
        out.document({"facts": facts, "rows": rows})
    else:
        out.table(_COLUMNS, [row.cells for row in rows], right=_COLUMNS[2:6])


class _Steps:
    """Tells how far the loads of one server are."""

    def __init__(self, report: Report, name: str) -> None:
        self._report = report
        self._name = name
        self._done = -1

    def __call__(self, load: str) -> None:
        self._done += 1
        self._report(f"{self._name}: {load}", self._done, _LOADS)


def _figures(
    server: Server, messages: int, size: int, step: Callable[[str], None]
) -> Iterator[Figure]:
    """Those of one server in one round. The receives take all that was sent."""
    step("send")
    warm(server, messages // 5, size)
    yield from measure_send(server, messages, size)
    step("receive")
    yield from measure_receive(server, 2 * messages)
    for rate in RATES:
        step(f"{rate:,}/s")
        yield from measure_latency(server, rate, size)
    step("memory")
    yield from measure_memory(server, messages, size)


def _rows(runs: dict[str, list[list[Figure]]]) -> list[Row]:
    medians = [[one.figure for one in combine(name, found)] for name, found in runs.items()]
    return [_row(own, other) for own, other in zip(*medians, strict=True)]


def _row(own: Figure, other: Figure) -> Row:
    """Both are of one name."""
    ratio = own.value / other.value
    target, value, unit = _RATIOS.get(own.name), ratio, "×"
    if target is None:
        target, value, unit = _OWN.get(own.name), own.value, own.unit
    sign = "≥" if own.better == "higher" else "≤"
    text = "" if target is None else f"{sign} {target:.3g} {unit}"
    reached = msgspec.structs.replace(own, value=value, target=target).reached
    return Row(own.name, own.unit, own.value, other.value, ratio, text, reached)


if __name__ == "__main__":
    bench_serve(prog_name="python -m bench.beside_rocketmq")
