"""Profiles: where the time of puts, reads, pops and tiering goes, native frames included.

`python -m bench.profiles --help`. The idea: a scenario of `bench` runs under py-spy, which samples
the stacks of all its threads. The stacks that pass the work's entry become a tree from there on:
the share of samples of each function, callees indented below it (a flame graph as text). Beside it
stand the floors: what a copy, a CRC, a hash and a compression of the same bytes take. The trees
and floors replace those in docs/profiles.md; the words around them are ours.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import click
import zstandard

from bench.archives import body_of
from bench.peers.installing import ROOT, environment
from kvstore.core.crc import crc32
from kvstore.core.hashing import xxh32

_PAGE: Final = ROOT / "docs/profiles.md"
_RATE: Final = 500
_LEAST: Final = 0.01
"""The share of samples from which on a function is shown."""
_DEEPEST: Final = 14
_FRAME: Final = re.compile(r"(?P<name>.+?) \((?P<file>[^()]*?)(:\d+)?\)$")


class Work(NamedTuple):
    """A scenario of `bench`, and the functions whose time is looked at."""

    scenario: tuple[str, ...]
    entries: tuple[str, ...]


WORKS: Final = {
    "put": Work(("put_batch",), ("Calls.put_batch",)),
    "put, one by one": Work(("put",), ("Calls.put",)),
    "put, synced": Work(("put_sync",), ("Calls.put",)),
    "pull": Work(("pull",), ("Calls.pull",)),
    "get": Work(("get",), ("Calls.get",)),
    "query": Work(("query",), ("Calls.query",)),
    "pop and ack": Work(("pop",), ("PopCalls.pop", "PopCalls.ack_batch")),
    "checkpoint": Work(("index_many",), ("Upkeep.checkpoint",)),
    "tier": Work(("archive_size", "--topics", "8"), ("segment_task",)),
}


class Node:
    """A function in a tree: its samples, and its callees by name."""

    def __init__(self) -> None:
        self.samples = 0
        self.callees: dict[str, Node] = {}

    def lines(self, whole: int, depth: int = 0) -> list[str]:
        """The callees that took the most, and theirs."""
        found = []
        for name, node in sorted(self.callees.items(), key=lambda item: -item[1].samples):
            if node.samples >= _LEAST * whole and depth < _DEEPEST:
                found.append(f"{node.samples / whole:6.1%}  {'  ' * depth}{name}")
                found += node.lines(whole, depth + 1)
        return found


def tree_of(stacks: str, entries: tuple[str, ...]) -> Node:
    """The tree of stacks, one a line with frames and number of samples, from the entries on."""
    root = Node()
    for line in stacks.splitlines():
        frames, _, count = line.rpartition(" ")
        names = [_name_of(frame) for frame in frames.split(";")]
        begin = next((i for i, name in enumerate(names) if name.split("  ")[0] in entries), None)
        if begin is None:
            continue
        node = root
        for name in (None, *names[begin:]):
            if name is not None:
                node = node.callees.setdefault(name, Node())
            node.samples += int(count)
    return root


def _name_of(frame: str) -> str:
    found = _FRAME.match(frame)
    if found is None:
        return frame
    file = found["file"]
    return f"{found['name']}  {file}" if file.startswith(("kvstore", "tiering")) else found["name"]


def profile(profiler: Path, work: Work) -> str:
    """The tree of a work, as text."""
    with tempfile.TemporaryDirectory(prefix="kvmq-profile-") as folder:
        out = Path(folder) / "stacks"
        command = (
            str(profiler), "record", "--native", "--subprocesses", "--rate", str(_RATE), "--format",
            "raw", "--output", str(out), "--", sys.executable, "-m", "bench", "--runs", "1",
            "--out", folder, *work.scenario,
        )  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        root = tree_of(out.read_text(encoding="utf-8", errors="replace"), work.entries)
    if not root.samples:
        raise click.ClickException(f"no sample of {work.scenario[0]} passed {work.entries}")
    return "\n".join([f"{root.samples} samples", *root.lines(root.samples)])


def floors() -> str:
    """The time of the work that no store can leave out, as a table."""
    draw = random.Random(7)
    large = b"".join(body_of(draw, n) for n in range(1024))
    key = b"order-12345678"
    rows = [
        ("copy into memory", _of_bytes(lambda: bytearray(large), len(large))),
        ("CRC-32", _of_bytes(lambda: crc32(large), len(large))),
        ("zstd, level 3", _of_bytes(lambda: zstandard.compress(large, 3), len(large))),
        ("zlib, level 5", _of_bytes(lambda: zlib.compress(large, 5), len(large))),
    ]
    table = ["| floor | 128 B | 1 KiB |", "|---|---:|---:|"]
    table += [f"| {name} | {128 * ns:,.0f} ns | {1024 * ns:,.0f} ns |" for name, ns in rows]
    hashed = _of_bytes(lambda: xxh32(key), 1)
    table.append(f"| hash of a key, with its call | {hashed:,.0f} ns | {hashed:,.0f} ns |")
    return "\n".join(table)


def _of_bytes(call: Callable[[], object], size: int) -> float:
    """Nanoseconds a byte, the best of many."""
    best = float("inf")
    for _ in range(50):
        begin = time.perf_counter_ns()
        call()
        best = min(best, time.perf_counter_ns() - begin)
    return best / size


@click.command()
@click.option("--only", type=click.Choice([*WORKS, "floors"]), multiple=True, help="Only these.")
def profiles(only: tuple[str, ...]) -> None:
    """Profile the works, and write the trees into docs/profiles.md."""
    profiler = environment("profiles") / "py-spy"
    for name in only or (*WORKS, "floors"):
        click.echo(name, err=True)
        if name == "floors":
            _replace(name, floors())
        else:
            _replace(name, f"```text\n{profile(profiler, WORKS[name])}\n```")


def _replace(name: str, text: str) -> None:
    page = _PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"<!-- {name}: begin -->\n")
    _, end, after = rest.partition(f"<!-- {name}: end -->")
    if not end:
        raise click.ClickException(f"{_PAGE} has no place for {name}")
    _PAGE.write_text(f"{before}{begin}\n{text}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    profiles(prog_name="python -m bench.profiles")
