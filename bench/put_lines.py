"""JSON lines put by the command, `kvmq put --jsonl`, in a process of its own.

The idea: the clock is the processor time of that process, its start included, so other work of the
machine does not decide the figure.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

from bench.figure import Figure, Options
from kvstore.cli.trial.measure import Load, messages


def run(folder: Path, options: Options) -> list[Figure]:
    """Put a file of JSON lines into a new store by the command."""
    size = 128 if options.size is None else options.size
    load = Load(messages=options.messages or 200_000, body=size // 2, topics=1)
    lines, begin = folder / "lines.jsonl", _processor_s()
    with lines.open("w", encoding="utf-8") as out:
        for m in messages(load):
            fields = {"tag": m.tag, "keys": list(m.keys), "properties": dict(m.properties)}
            out.write(json.dumps({"body": bytes(m.body).hex(), **fields}) + "\n")
    words = ("put", folder / "store", "t", lines, "--jsonl", "--create")
    subprocess.run(
        [sys.executable, "-m", "kvstore", *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )
    seconds = _processor_s() - begin
    return [
        Figure(f"kvmq put --jsonl, {size} B, of processor time", load.messages / seconds, "msg/s")
    ]


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
