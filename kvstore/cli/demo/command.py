"""The verb `demo`: which source, which folder, which steps in which order."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import click

import kvstore
from kvstore import Store, StoreConfig
from kvstore.cli.demo import checks, crash, tiers
from kvstore.cli.demo.load import BATCH, Loaded, load
from kvstore.cli.demo.showing import DemoReport, show_demo
from kvstore.cli.demo.sources import Limited, Lines, Source, StandardLibrary
from kvstore.cli.demo.space import Space, TierSpace, measure_space
from kvstore.cli.demo.steps import Step
from kvstore.cli.output import Output, Report, output_option
from kvstore.clock import SystemClock
from kvstore.errors import StoreError

T = TypeVar("T")

_CONFIG: Final = StoreConfig(segment_size=64 << 20)
"""Small segments, so that the demo also seals some; the default of 1 GiB would show only one."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path),
              help="Where to make the store; default kvmq-demo/<time>.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="Only so many messages.")
@click.option(
    "--keep/--no-keep", default=True, show_default=True, help="Leave the store to look at."
)
@output_option
def demo(
    out: Output, files: tuple[str, ...], folder: Path | None, limit: int | None, keep: bool
) -> None:
    """Load real input, read it back in every way, tier half, kill a writer, and check it all.

    Without FILES the input is this Python's own standard library: one message a source line,
    topic = module, key = file, tag = kind of line. Otherwise it is the lines of FILES (- is
    standard input); of a line that is a JSON object body, topic, key or keys, tag and properties
    are taken if it has them. Exit code 1 if any check fails.
    """
    folder = _new_folder(folder)
    source: Source = _lines(files, folder) if files else StandardLibrary()
    if limit is not None:
        source = Limited(source, limit)
    if not out.json:
        out.text(f"source  {source.title}")
        out.text(f"store   {folder}")
    clock = SystemClock()
    begin = clock.monotonic()
    with out.progress() as progress:
        run = _Run(folder, source, progress)
        run.all()
    seconds = clock.monotonic() - begin
    report = DemoReport(source.title, str(folder), run.steps, run.space, seconds, run.tiers)
    show_demo(out, report)
    if not keep and report.ok:
        shutil.rmtree(folder)
    elif not out.json:
        _hint(out, folder, run)
    if not report.ok:
        click.get_current_context().exit(1)


def _new_folder(folder: Path | None) -> Path:
    if folder is None:
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000)
        folder = Path("kvmq-demo") / now.strftime("%Y%m%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty; the demo makes a new store")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _lines(files: tuple[str, ...], folder: Path) -> Lines:
    """The files' lines. Standard input is kept in the folder, because it will be read twice."""
    paths = []
    for name in files:
        if name == "-":
            path = folder / "stdin.txt"
            with path.open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
            paths.append(path)
        else:
            paths.append(Path(name))
    return Lines(paths, ", ".join("standard input" if name == "-" else name for name in files))


def _hint(out: Output, folder: Path, run: _Run) -> None:
    if run.loaded.sample:
        message, result = run.loaded.sample[0]
        out.text(f"look around: kvmq query {folder} {result.topic} {message.keys[0]} --limit 5")


class _Run:
    """The steps, in order. A step that the store ends with an error is a fault, not the end."""

    def __init__(self, folder: Path, source: Source, progress: Report) -> None:
        self.steps: list[Step] = []
        self.space: Space | None = None
        self.tiers: TierSpace | None = None
        self.loaded = Loaded()
        self._folder = folder
        self._source = source
        self._progress = progress

    def all(self) -> None:
        """Load, read back, tier, kill, recover, verify."""
        with kvstore.open(self._folder, config=_CONFIG) as store:
            self.loaded = load(store, self._source, self._progress)
        self.space = measure_space(self._folder, self.loaded)
        self.steps.append(self._put_step())
        opened = Step("open", "a store with everything indexed", unit="")
        with opened.timed():
            store = kvstore.open(self._folder, config=_CONFIG)
        left = store.recovery.records
        opened.expect(left == 0, f"{left:,} records had not been indexed by the close")
        self.steps.append(opened)
        with store:
            self._read_back(store)
            if self.loaded.messages:
                self._tier(store)
            store.create_topic(crash.TOPIC, queues=crash.QUEUES)
        self._crash()

    def _put_step(self) -> Step:
        loaded = self.loaded
        step = Step(f"put_batch({BATCH})", count=loaded.messages, seconds=loaded.seconds)
        step.shown = f"into {len(loaded.topics):,} topics, {len(loaded.queues):,} queues; indexed"
        step.expect(loaded.messages > 0, "the source is empty")
        return step

    def _read_back(self, store: Store) -> None:
        loaded = self.loaded
        pulled = self._step(
            "pull", lambda: checks.pull_everything(store, self._source, loaded, self._progress)
        )
        if pulled is not None:
            self.steps.append(pulled[0])
            self._simple("query", lambda: checks.query_keys(store, pulled[1]))
        self._simple("get", lambda: checks.get_sample(store, loaded))
        self._simple("read_at", lambda: checks.read_sample(store, loaded))
        self._simple("find", lambda: checks.find_sample(store, loaded))
        self._simple("offset_at", lambda: checks.offsets_by_time(store, loaded))

    def _tier(self, store: Store) -> None:
        found = self._step("tier", lambda: tiers.tier_cold_half(store, self.loaded, self._progress))
        if found is not None:
            self.steps += found[0]
            self.tiers = found[1]

    def _crash(self) -> None:
        self._progress("writing in a child, to be killed", 0, 0)
        killed, acknowledged = crash.write_and_kill(self._folder)
        self.steps.append(killed)
        reopened, store = crash.reopen(self._folder, _CONFIG)
        self.steps.append(reopened)
        with store:
            survivors = self._step(
                "reopen", lambda: crash.check_survivors(store, acknowledged, reopened)
            )
            # What is in archives is not in the log any more; the worker read it back.
            moved = self.tiers.warm_messages if self.tiers is not None else 0
            total = self.loaded.messages + (survivors or 0) - moved
            self._simple("verify", lambda: checks.verify(store, total, self._progress))

    def _simple(self, name: str, check: Callable[[], Step]) -> None:
        step = self._step(name, check)
        if step is not None:
            self.steps.append(step)

    def _step(self, name: str, check: Callable[[], T]) -> T | None:
        try:
            return check()
        except StoreError as e:
            self.steps.append(checks.guarded(name, e))
            return None
