"""The verbs `tier run`, `tier merge`, `tier compact` and `tier reencrypt`: a policy is carried out,
once or again and again; archives take the place of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from kvstore.cli.terminal.opening import folder_argument
from kvstore.cli.terminal.options import policy_option
from kvstore.cli.terminal.output import Report, exit_if
from kvstore.cli.tier.worker import Job, job_options, show_run, worker_call

if TYPE_CHECKING:
    from tiering.operations.served_worker import ServedWorker
    from tiering.operations.worker import Worker
    from tiering.worker.runs import RunReport
    from tiering.worker.store_protocols import Progress

_of_topic_option = click.option(
    "--topic", metavar="TOPIC", help="Only archives with messages of this topic."
)


@click.command()
@folder_argument
@policy_option
@click.option("--watch", is_flag=True, help="Go on, and look again at intervals.")
@click.option("--interval", type=click.FloatRange(min=0.05), default=60.0, show_default=True,
              metavar="SECONDS", help="Between two looks of --watch.")  # fmt: skip
@job_options
def run(job: Job, watch: bool, interval: float) -> None:
    """Carry out a policy in the store in DIR until nothing is due; --watch merges, too.

    Of a store that is served the server does it. No other process may have the store open for
    writing; a program that writes runs a tiering.Worker of its own. Exit code 1 if something could
    not be done; the next run tries it again.
    """
    does = worker_call("start" if watch else "run_once")
    with job.working(does, shown=_of_the_whole) as found:
        done = _run_once(job, found.worker, watch=watch)
        while watch and not found.stopping.is_set():
            if not found.clock.wait(found.stopping, interval):
                _run_once(job, found.worker, watch=True)
    exit_if(done.failed and not watch)


def _run_once(job: Job, worker: Worker | ServedWorker, *, watch: bool) -> RunReport:
    from tiering.errors import TieringStopped
    from tiering.worker.runs import RunReport

    try:
        done = worker.run_and_merge() if watch else worker.run_once()
    except TieringStopped:
        if not watch:
            raise
        return RunReport()
    if not watch or done != RunReport(waits_for_hours=done.waits_for_hours):
        show_run(job.out, done, line=watch)
    return done


def _of_the_whole(report: Report) -> Progress:
    """Reports only the progress of the whole, of which an estimate can be made, and not of each
    step.
    """
    from tiering.operations.worker import MOVING
    from tiering.worker.rewriting import MERGING

    def report_whole(what: str, done: int, total: int) -> None:
        if what in (MOVING, MERGING):
            report(what, done, total)

    return report_whole


@click.command()
@folder_argument
@policy_option
@click.option("--target-bytes", type=click.IntRange(min=1),
              help="Bytes that a merged archive has at most.  [default: 536870912]")  # fmt: skip
@click.option("--topic", metavar="TOPIC",
              help="Merge nothing; part TOPIC from topics of another retention.")  # fmt: skip
@job_options
def merge(job: Job, target_bytes: int | None, topic: str | None) -> None:
    """Merge neighbouring archives of the store in DIR into larger ones.

    Compacted topics keep the newest message of each key. With --topic, instead, two archives take
    the place of each one that holds TOPIC together with topics of another retention: one has TOPIC
    alone. The old objects go after the policy's grace time, with the next run. Exit code 1 if
    something could not be done.
    """
    if topic is None:
        sizes = () if target_bytes is None else (target_bytes,)
        _rewrite(job, worker_call("merge", target_bytes), lambda w: w.merge(*sizes))
    elif target_bytes is None:
        _rewrite(job, worker_call("part", topic), lambda w: w.part(topic))
    else:
        raise click.UsageError("--topic parts archives, and takes no --target-bytes")


@click.command()
@folder_argument
@policy_option
@_of_topic_option
@job_options
def compact(job: Job, topic: str | None) -> None:
    """Keep the newest message of each key in compacted topics of the store in DIR.

    As `tier merge`, but of archives of compacted topics alone, and of all of them, whatever their
    sizes. Exit code 1 if something could not be done.
    """
    _rewrite(job, worker_call("compact", topic), lambda w: w.compact(topic))


@click.command()
@folder_argument
@policy_option
@_of_topic_option
@job_options
def reencrypt(job: Job, topic: str | None) -> None:
    """Write archives of the store in DIR anew that are not under the present keys.

    These are archives with messages of topics that have another key now in the file that --keys
    names, that have got one (`kvmq tier key make`), or that have none any more. The old objects
    go after the policy's grace time, with the next run; copies that others made stay as they are.
    Exit code 1 if something could not be done.
    """
    _rewrite(job, worker_call("reencrypt", topic), lambda w: w.reencrypt(topic))


def _rewrite(job: Job, does: str, work: Callable[[Worker | ServedWorker], RunReport]) -> None:
    with job.working(does) as found:
        done = work(found.worker)
    show_run(job.out, done)
    exit_if(done.failed)
