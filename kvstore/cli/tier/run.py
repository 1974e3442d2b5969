"""The verb `tier run`: have done what a policy says, once or again and again.

Invariant: a signal ends the step under way as if it had not begun; whatever was done before stays.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvstore.cli.access import Access, access_options
from kvstore.cli.opening import config_option, folder_argument, open_store
from kvstore.cli.output import Output, Report, output_option, size_text
from kvstore.cli.tier.options import policy_option, read_policy

if TYPE_CHECKING:
    from tiering.runs import RunReport
    from tiering.storeside import Progress
    from tiering.worker import Worker


@click.command()
@folder_argument
@policy_option
@click.option("--watch", is_flag=True, help="Go on, and look again at intervals.")
@click.option("--interval", type=click.FloatRange(min=0.05), default=60.0, show_default=True,
              metavar="SECONDS", help="Between two looks of --watch.")  # fmt: skip
@access_options
@config_option
@output_option
def run(
    out: Output, folder: Path, policy_file: Path, watch: bool, interval: float,
    access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Move what is due by a policy in the store in DIR, until nothing is; --watch merges, too.

    Nobody else may have the store open for writing; a program that writes runs a tiering.Worker of
    its own. Exit code 1 if something could not be done; the next run tries it again.
    """
    from tiering.worker import Worker

    policy = read_policy(policy_file)
    ended = False
    opened = open_store(out, folder, config_file, access=access)
    with opened as store, out.progress() as report:
        worker = Worker(store, policy, progress=whole(report))
        with worker, ending(worker) as stopping:
            done = _once(out, worker, watch=watch)
            ended = not done.failed
            while watch and not stopping.is_set():
                if not store.config.clock.wait(stopping, interval):
                    ended = not _once(out, worker, watch=True).failed
    if not ended and not watch:
        click.get_current_context().exit(1)


def _once(out: Output, worker: Worker, *, watch: bool) -> RunReport:
    from tiering.errors import TieringStopped
    from tiering.runs import RunReport

    try:
        done = worker.run_and_merge() if watch else worker.run_once()
    except TieringStopped:
        if not watch:
            raise
        return RunReport()
    if watch and done == RunReport(waits_for_hours=done.waits_for_hours):
        return done
    if out.json:
        (out.line if watch else out.document)(done)
    else:
        show(out, done)
    return done


@contextmanager
def ending(worker: Worker) -> Iterator[threading.Event]:
    """SIGTERM and SIGINT end the worker, and set the event; they are as they were afterwards."""
    stopping = threading.Event()

    def end(number: int, frame: object) -> None:
        stopping.set()
        # Not from here: it waits for a run that this thread is in.
        threading.Thread(target=worker.stop, name="kvmq tiering's end").start()

    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def whole(report: Report) -> Progress:
    """Progress of the whole alone: an estimate can be made of that, and not of each step."""
    from tiering.merging import MERGING
    from tiering.worker import MOVING

    def tell(what: str, done: int, total: int) -> None:
        if what in (MOVING, MERGING):
            report(what, done, total)

    return tell


def show(out: Output, done: RunReport) -> None:
    """Print what a run did."""
    share = f" ({done.bytes / done.raw_bytes:.0%})" if done.raw_bytes else ""
    rows = [
        ("segments moved", f"{len(done.segments):,}"),
        ("archives made", f"{len(done.archives):,}"),
        ("messages", f"{done.messages:,}"),
        ("records", size_text(done.raw_bytes)),
        ("archives take", size_text(done.bytes) + share),
        ("archives gone cold", f"{len(done.shifted):,}"),
        ("archives merged", f"{len(done.merged):,}"),
        ("archives expired", f"{len(done.expired):,}"),
        ("objects removed", f"{len(done.removed):,}"),
    ]
    out.table(("what", "value"), rows, right=("value",))
    if done.waits_for_hours:
        out.text("more is due, and waits for the policy's hours")
    if done.failed:
        out.table(("not done", "why"), list(done.failed.items()))
