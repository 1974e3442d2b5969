"""docs/benchmarks.md, its plots, and README's row of rates, from the results of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bench.peers.installing import CACHE, HERE, ROOT
from bench.peers.work import Figures

_ROWS: Final = {
    "put_batch": "put, batches of 32, 128 B",
    "put_batch_1k": "put, batches of 32, 1 KiB",
    "put": "put, one by one, 128 B",
    "topics_5000": "put over 5,000 topics of 8 queues",
    "put_sync": "put, each synced, 16 threads",
    "pull": "pull of 32, every field read",
    "get": "get at random positions",
    "query": "query by key",
    "pop_batch": "pop of 32 and ack",
    "pop_one": "pop of 1 and ack, one thread",
    "pop_threads": "pop of 1 and ack, 16 threads",
}
_SWEEP: Final = {"topics_8": 8, "topics_500": 500, "topics_5000": 5000}
_README: Final = {
    "kvmq": "kvmq",
    "RocketMQ 5": "RocketMQ, files",
    "Kafka 4": "",
    "NATS JetStream": "NATS JetStream",
    "Redis Streams": "Redis Streams",
    "a SQLite queue": "SQLite lease table",
}
_HEAD: Final = HERE / "head.md"
_SHORT: Final = """
**This was a short run, which shows that the comparison works; its figures must not be quoted.** The
JVM was cold and other work went on, so no ratios are shown; some works may be missing. README keeps
the figures of [figures.md](figures.md) until there is a full run.
"""
README_ROW: Final = "| put, batches of 32, 128 B, indexed, two cores |"

Runs = dict[str, tuple[tuple[str, ...], str]]
"""By peer: its command, and its version."""
Results = dict[str, dict[str, Figures]]


def write(facts: dict[str, str], peers: Runs, results: Results, full: bool) -> None:
    """Write them all; README's row only from a full run."""
    text = (
        f"{_HEAD.read_text(encoding='utf-8')}\n{_facts(facts)}{'' if full else _SHORT}"
        f"\n## Rates\n\n{_rates(results, full)}\n"
        f"## Over the number of topics\n\n{_sweep(results)}\n{_plots(results)}"
        f"\n## Versions and commands\n\n{_versions(peers)}"
    )
    (ROOT / "docs/benchmarks.md").write_text(text, encoding="utf-8")
    if full:
        _write_readme(results)


def _facts(facts: dict[str, str]) -> str:
    rows = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    return f"## The run\n\n| | |\n|---|---|\n{rows}"


def shown(value: float) -> str:
    """A figure with two or three digits that count."""
    if value >= 100:
        digits = len(str(int(value)))
        return f"{round(value, 3 - digits):,.0f}"
    return f"{value:.1f}"


def _table(names: list[str], rows: list[tuple[str, list[str]]]) -> str:
    head = f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}\n"
    return head + "".join(f"| {title} | {' | '.join(cells)} |\n" for title, cells in rows)


def _rates(results: Results, full: bool) -> str:
    rows = []
    for work, title in _ROWS.items():
        own = results["kvmq"].get(work, {}).get("rate")
        cells = []
        for name, by_work in results.items():
            rate = by_work.get(work, {}).get("rate")
            ratio = f" ({own / rate:.1f} ×)" if full and rate and own and name != "kvmq" else ""
            cells.append(f"{shown(rate)}/s{ratio}" if rate else "–")
        rows.append((title, cells))
    return _table(list(results), rows)


def _sweep(results: Results) -> str:
    rows = []
    for figure, title, unit in (
        ("rate", "put", "msg/s"),
        ("disk", "disk, a message", "B"),
        ("memory", "memory", "MB"),
    ):
        for work, topics in _SWEEP.items():
            found = [by_work.get(work, {}).get(figure) for by_work in results.values()]
            cells = [f"{shown(value)} {unit}" if value is not None else "–" for value in found]
            rows.append((f"{title}, {topics:,} topics of 8 queues", cells))
    return _table(list(results), rows)


def _plots(results: Results) -> str:
    """The text that shows them; none without matplotlib, or without what they show."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        return "\n(Without matplotlib there are no plots.)\n"
    plt.rcParams["svg.hashsalt"] = "kvmq"
    made = []
    bars = [name for name in results if results[name].get("put_batch")]
    if bars:
        figure, axes = plt.subplots(figsize=(8, 3))
        axes.barh(bars[::-1], [results[name]["put_batch"]["rate"] for name in bars[::-1]])
        axes.set_xlabel("put, batches of 32, 128 B: messages a second")
        made.append(_save(figure, "throughput"))
    for key, label in (("disk", "bytes a message"), ("memory", "memory, MB")):
        lines = {
            name: [(_SWEEP[w], by_work[w][key]) for w in _SWEEP if by_work.get(w)]
            for name, by_work in results.items()
        }
        if not any(lines.values()):
            continue
        figure, axes = plt.subplots(figsize=(8, 4))
        for name, points in lines.items():
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="topics of 8 queues", ylabel=label)
        axes.legend(fontsize="small")
        made.append(_save(figure, key))
    return "\n" + "\n".join(f"![{name}](benchmarks-{name}.svg)" for name in made) + "\n"


def _save(figure: object, name: str) -> str:
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    figure.tight_layout()
    figure.savefig(ROOT / f"docs/benchmarks-{name}.svg", metadata={"Date": None})
    plt.close(figure)
    return name


def _versions(peers: Runs) -> str:
    rows = "".join(f"| {name} | {version} |\n" for name, (_, version) in peers.items())
    commands = "\n".join(_command(command) for command, _ in peers.values())
    return (
        f"| | version |\n|---|---|\n{rows}\n"
        f"Before `WORK FOLDER MESSAGES`:\n\n```text\n{commands}\n```\n"
    )


def _command(command: tuple[str, ...]) -> str:
    """Without the folders of this machine."""
    text = " ".join((Path(command[0]).name, *command[1:]))
    return text.replace(str(CACHE), ".cache").replace(str(ROOT), ".")


def _write_readme(results: Results) -> None:
    """README's row takes the rates of this page."""
    cells = []
    for name in _README.values():
        rate = results.get(name, {}).get("put_batch", {}).get("rate")
        cells.append(f"{shown(rate)}/s" if rate else "not measured")
    path = ROOT / "README.md"
    row = f"{README_ROW} {' | '.join(cells)} |"
    text = re.sub(rf"^{re.escape(README_ROW)}.*$", row, path.read_text("utf-8"), flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
