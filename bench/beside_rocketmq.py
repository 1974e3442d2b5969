"""`make bench-serve`: a served store beside RocketMQ's proxy, in turns, by the same load."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.grpc_clients import Server, receive_all, send_all, served
from bench.grpc_peer import rocketmq

_SERVERS: Final[dict[str, Callable[[Path], AbstractContextManager[Server]]]] = {
    "kvmq": served,
    "RocketMQ": rocketmq,
}
_WARM: Final = 20_000


class Measured(NamedTuple):
    """Messages a second, and seconds of the server's processor time a million of them."""

    rate: float
    cpu: float


@click.command()
@click.option("--messages", default=100_000, show_default=True, help="Of each load.")
@click.option("--rounds", default=3, show_default=True, help="Turns, of which medians are shown.")
@click.option("--size", default=1024, show_default=True, help="Bytes of a body.")
def main(messages: int, rounds: int, size: int) -> None:
    """Measures both servers in turns, and prints medians."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for _ in range(rounds):
        for name, start in _SERVERS.items():
            with tempfile.TemporaryDirectory() as folder, start(Path(folder) / "s") as server:
                for load, measured in _loads(server, messages, size):
                    found.setdefault((load, name), []).append(measured)
    table = Table("load", "", *_SERVERS, "ratio")
    for load in dict.fromkeys(load for load, _ in found):
        for what, unit in (("rate", "/s"), ("cpu", "s/million")):
            middle = [median(getattr(one, what) for one in found[load, name]) for name in _SERVERS]
            shown = [f"{value:,.1f}" for value in middle]
            table.add_row(load, unit, *shown, f"{middle[0] / middle[1]:.2f}")
    Console().print(table)


def _loads(server: Server, messages: int, size: int) -> Iterator[tuple[str, Measured]]:
    asyncio.run(send_all(server, _WARM, size, 1, 64))
    for batch, in_flight in ((1, 64), (32, 8)):
        cpu, begun = server.cpu(), time.perf_counter()
        asyncio.run(send_all(server, messages, size, batch, in_flight))
        yield (
            f"send, {batch} a request",
            _measured(server, messages, cpu, time.perf_counter() - begun),
        )
    cpu, begun = server.cpu(), time.perf_counter()
    received, ended = asyncio.run(receive_all(server, messages))
    yield "receive 32 + ack", _measured(server, received, cpu, ended - begun)


def _measured(server: Server, messages: int, cpu: float, seconds: float) -> Measured:
    return Measured(messages / seconds, 1e6 * (server.cpu() - cpu) / messages)


if __name__ == "__main__":
    main()
