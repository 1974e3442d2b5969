"""The verb `tier run`: carrying out a policy, once or again and again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.opening import config_option, folder_argument
from kvstore.cli.terminal.output import Output, Report, output_option
from kvstore.cli.tier.options import policy_option
from kvstore.cli.tier.working import Who, embedded, show, with_options, worker_call, working

if TYPE_CHECKING:
    from tiering.operations.worker import Worker
    from tiering.worker.runs import RunReport
    from tiering.worker.store_side import Progress

run_options = with_options(
    folder_argument,
    policy_option,
    click.option("--watch", is_flag=True, help="Go on, and look again at intervals."),
    click.option("--interval", type=click.FloatRange(min=0.05), default=60.0, show_default=True,
                 metavar="SECONDS", help="Between two looks of --watch."),
    access_options,
    config_option,
    output_option,
)  # fmt: skip


@click.command()
@run_options
def run(
    out: Output, folder: Path, policy_file: Path, watch: bool, interval: float,
    access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Carry out a policy in the store in DIR until nothing is due; --watch merges, too.

    Nobody else may have the store open for writing; a program that writes runs a tiering.Worker of
    its own. Exit code 1 if something could not be done; the next run tries it again.
    """
    run_with(
        out, embedded, folder, policy_file, watch=watch, interval=interval, access=access,
        config_file=config_file,
    )  # fmt: skip


def run_with(
    out: Output, who: Who, folder: Path, policy_file: Path, *, watch: bool, interval: float,
    access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Carry out a policy with the given worker."""
    ended = False
    does = worker_call("start" if watch else "run_once")
    with working(
        out, who, folder, policy_file, access, config_file, does=does, told=whole
    ) as found:
        done = _once(out, found.worker, watch=watch)
        ended = not done.failed
        while watch and not found.stopping.is_set():
            if not found.clock.wait(found.stopping, interval):
                ended = not _once(out, found.worker, watch=True).failed
    if not ended and not watch:
        click.get_current_context().exit(1)


def _once(out: Output, worker: Worker, *, watch: bool) -> RunReport:
    from tiering.errors import TieringStopped
    from tiering.worker.runs import RunReport

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


def whole(report: Report) -> Progress:
    """Report only the progress of the whole, of which an estimate can be made, and not of each
    step.
    """
    from tiering.operations.worker import MOVING
    from tiering.worker.rewriting import MERGING

    def tell(what: str, done: int, total: int) -> None:
        if what in (MOVING, MERGING):
            report(what, done, total)

    return tell
