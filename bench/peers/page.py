"""docs/benchmarks.md, its plots, its targets, and README's rows, from the results of a run."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from bench.peers.installing import CACHE, HERE, IN_MEMORY, ROOT
from bench.peers.work import Figures

ROWS: Final = {
    "put_batch": "put, batches of 32, 128 B",
    "put_batch_1k": "put, batches of 32, 1 KiB",
    "put_columns": "put, Arrow columns of 1,024 rows, 128 B",
    "put": "put, one by one, 128 B",
    "topics_5000": "put over 5,000 topics of 8 queues, batches of 32",
    "topics_5000_single": "put over 5,000 topics of 8 queues, one by one",
    "put_sync": "put, each synced, 16 threads",
    "pull": "pull of 32, every field read",
    "get": "get at random positions",
    "query": "query by key",
    "pop_batch": "pop of 32 and ack",
    "pop_one": "pop of 1 and ack, one thread",
    "pop_threads": "pop of 1 and ack, 16 threads",
}
TIME_ROWS: Final = {
    "put_delayed": "put of a message that waits, one by one",
    "deliver": "delivery of messages that are due at one time",
    "cancel": "cancel of a message that waits, one by one",
    "transaction": "prepare and commit, one by one",
}
"""Works of messages in time, 128 B."""
_SWEEP: Final = {"topics_8": 8, "topics_500": 500, "topics_5000": 5000}
_FILES, _ROCKSDB = "RocketMQ, files", "RocketMQ, RocksDB"
_STORES: Final = (_FILES, _ROCKSDB)


class _Target(NamedTuple):
    """kvmq's figure divided by the best one of some peers; or, where `of` names another work, by
    its own of that.
    """

    work: str
    against: tuple[str, ...]
    bound: float
    figure: str = "rate"
    """Of a rate the bound is the least, of memory the most."""
    of: str | None = None


_TARGETS: Final = (
    _Target("put_batch", (_ROCKSDB,), 3),
    _Target("put_batch", (_FILES,), 1.2),
    _Target("put_batch_1k", (_ROCKSDB,), 2),
    _Target("put_batch_1k", (_FILES,), 1.2),
    _Target("put_columns", ("kvmq",), 2, of="put_batch"),
    _Target("put", (_ROCKSDB,), 2),
    _Target("put", (_FILES,), 1.2),
    _Target("topics_5000", (_ROCKSDB,), 4),
    _Target("topics_5000_single", (_ROCKSDB,), 4),
    _Target("put_sync", _STORES, 1.2),
    _Target("pull", (_ROCKSDB,), 3),
    _Target("pull", (_FILES,), 1.2),
    _Target("get", _STORES, 1),
    _Target("query", _STORES, 0.5),
    _Target("pop_batch", (IN_MEMORY,), 2),
    _Target("pop_batch", _STORES, 40),
    _Target("pop_one", ("SQLite lease table",), 5),
    _Target("pop_threads", ("NATS JetStream", "Redis Streams"), 5),
    _Target("topics_5000", _STORES, 0.1, "memory"),
)
_TARGETS_HEAD: Final = """

kvmq's figure divided by that of the peer, of the better one of two, or of kvmq in another work.
Other targets that need no peer are not of this page.

"""
_README: Final = (
    ("kvmq",),
    (_FILES, _ROCKSDB, IN_MEMORY),
    (),
    ("NATS JetStream",),
    ("Redis Streams",),
    ("SQLite lease table",),
)
"""The peers of README's columns, of which the best counts; Kafka was not run."""
README_ROWS: Final = {
    "put, batches of 32; one by one (128 B, indexed, two cores)": ("put_batch", "put"),
    "pull of 32, every field read; pop of 32 and ack": ("pull", "pop_batch"),
    "memory over 5,000 topics of 8 queues": ("topics_5000",),
}
_README_BEGIN: Final = "| put, batches of 32"
_HEAD: Final = HERE / "head.md"
_PAGE: Final = "docs/benchmarks.md"
_IN_TIME: Final = "## Messages in time\n"
_SERVED: Final = "## A server beside RocketMQ's proxy\n"
_TOPICS: Final = "## Over the number of topics\n"
_SHORT: Final = """
**This was a short run, which shows that the comparison works; its figures must not be quoted.**
"""
_LEFT_OUT: Final = """
It has no ratios and no targets, and some works may be missing. README keeps the figures of
[figures.md](figures.md) until there is a full run.
"""

Runs = dict[str, tuple[tuple[str, ...], str]]
"""By peer: its command, and its version."""
Results = dict[str, dict[str, Figures]]
Rows = Sequence[tuple[str, Sequence[str]]]
"""Of a table: titles and cells."""


def write(facts: dict[str, str], peers: Runs, results: Results, full: bool) -> None:
    """Write them all but the part about a server, which stays; targets and README's rows only from
    a full run.
    """
    text = (
        f"{_HEAD.read_text(encoding='utf-8')}\n## The run\n\n{_facts(facts)}"
        f"{'' if full else _SHORT + _LEFT_OUT}"
        f"\n## Rates\n\n{_rates(ROWS, results, full)}\n"
        f"{f'## Targets{_targets(results)}' if full else ''}"
        f"{_IN_TIME}\n{_in_time({}, results, full)}"
        f"{_section(_page(), _SERVED)}"
        f"{_TOPICS}\n{_sweep(results)}\n{_plots(results)}"
        f"\n## Versions and commands\n\n{_versions(peers)}"
    )
    (ROOT / _PAGE).write_text(text, encoding="utf-8")
    if full:
        _write_readme(results)


def write_in_time(facts: dict[str, str], results: Results) -> None:
    """Write the part about messages in time alone, with the facts of its own run."""
    _write_section(_IN_TIME, _in_time(facts, results, False))


def write_served(
    head: str, facts: dict[str, str], names: list[str], rows: Rows, *, full: bool
) -> None:
    """Write the part about a server alone: a text, the facts of its run, and a table."""
    short = "" if full else _SHORT
    _write_section(_SERVED, f"{head}\n{_facts(facts)}{short}\n{_table(names, rows)}\n")


def _write_section(heading: str, text: str) -> None:
    """In the place of the page's old one, or before that of the topics."""
    page = _page()
    old = _section(page, heading)
    at = page.index(old or _TOPICS)
    new = f"{page[:at]}{heading}\n{text}{page[at + len(old) :]}"
    (ROOT / _PAGE).write_text(new, encoding="utf-8")


def _page() -> str:
    path = ROOT / _PAGE
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _section(page: str, heading: str) -> str:
    """A section of the page, with its heading; empty if there is none."""
    _, found, text = page.partition(heading)
    return found + re.split(r"^(?=## )", text, maxsplit=1, flags=re.MULTILINE)[0]


def _in_time(facts: dict[str, str], results: Results, full: bool) -> str:
    """Its facts are given if it is of a run of its own."""
    own = f"Of a run of its own:\n\n{_facts(facts)}\n" if facts else ""
    return f"{own}{_rates(TIME_ROWS, results, full)}\n"


def facts_of(command: str, begun: datetime, load: float, amounts: str) -> dict[str, str]:
    """The facts of a run that ends now; `load` is that of the machine before it began."""
    return {
        "Begun": begun.isoformat(timespec="minutes"),
        "Command": f"{command} ARGS={shlex.quote(shlex.join(sys.argv[1:]))}",
        "Messages, rounds": amounts,
        "Machine": f"{os.cpu_count()} processors, {platform.system()}"
        f" {platform.release().partition('-')[0]}, {platform.machine()}; load {load:.1f} before",
        "Python": platform.python_version(),
        "Took": f"{(datetime.now(UTC) - begun).total_seconds() / 60:.0f} minutes",
    }


def _facts(facts: dict[str, str]) -> str:
    rows = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    return f"| | |\n|---|---|\n{rows}"


def shown(value: float) -> str:
    """A figure with two or three digits that count."""
    if value >= 100:
        digits = len(str(int(value)))
        return f"{round(value, 3 - digits):,.0f}"
    return f"{value:.1f}"


def _table(names: list[str], rows: Rows) -> str:
    head = f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}\n"
    return head + "".join(f"| {title} | {' | '.join(cells)} |\n" for title, cells in rows)


def _rates(titles: dict[str, str], results: Results, full: bool) -> str:
    rows = []
    for work, title in titles.items():
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
            name: [(n, by_work[w][key]) for w, n in _SWEEP.items() if key in by_work.get(w, {})]
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


def _best(results: Results, peers: tuple[str, ...], work: str, figure: str) -> float | None:
    """The best figure of some peers: the highest rate, or the least memory.

    A store that failed has no rate, and its memory is not that of the whole work.
    """
    rows = [results.get(name, {}).get(work, {}) for name in peers]
    measured = [row[figure] for row in rows if row.get("rate") and figure in row]
    if not measured:
        return None
    return max(measured) if figure == "rate" else min(measured)


def _targets(results: Results) -> str:
    rows = []
    for target in _TARGETS:
        rate = target.figure == "rate"
        title = ROWS[target.work] if rate else f"{target.figure}, {_SWEEP[target.work]:,} topics"
        own = _best(results, ("kvmq",), target.work, target.figure)
        other = _best(results, target.against, target.of or target.work, target.figure)
        measured, met = "–", "not measured"
        if own and other:
            ratio = own / other
            measured = f"{ratio:.2f} ×"
            met = "yes" if (ratio >= target.bound if rate else ratio <= target.bound) else "no"
        bound = f"{'at least' if rate else 'at most'} {target.bound:g} ×"
        against = ROWS[target.of] if target.of else " or ".join(target.against)
        rows.append((title, [against, bound, measured, met]))
    table = _table(["against the better of", "target", "measured", "met"], rows)
    return f"{_TARGETS_HEAD}{table}\n"


def _write_readme(results: Results) -> None:
    """README's rows take the figures of this page, and stand where they stood."""
    path = ROOT / "README.md"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if line.startswith(_README_BEGIN))
    old = (_README_BEGIN, *(f"| {title} |" for title in README_ROWS))
    kept = [line for line in lines if not line.startswith(old)]
    kept[at:at] = [_readme_row(results, title, works) for title, works in README_ROWS.items()]
    path.write_text("".join(kept), encoding="utf-8")


def _readme_row(results: Results, title: str, works: tuple[str, ...]) -> str:
    memory = len(works) == 1
    cells = []
    for peers in _README:
        found = [_best(results, peers, w, "memory" if memory else "rate") for w in works]
        texts = [f"{shown(v)}{' MB' if memory else '/s'}" if v else "not measured" for v in found]
        cells.append("; ".join(texts) if any(found) else "not measured")
    return f"| {title} | {' | '.join(cells)} |\n"
