"""The verbs `tier run`, `tier merge`, `tier compact` and `tier reencrypt`: a policy is carried out,
once or again and again; archives take the place of others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvstore.cli.terminal.opening import config_option, folder_argument
from kvstore.cli.terminal.options import Access, access_options, policy_option
from kvstore.cli.terminal.output import Output, Report, output_option
from kvstore.cli.tier.worker import Who, embedded, ended, show, with_options, worker_call, working

if TYPE_CHECKING:
    from collections.abc import Callable

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


TARGET_BYTES: Final = 512 << 20
merge_options = with_options(
    folder_argument,
    policy_option,
    click.option("--target-bytes", type=click.IntRange(min=1),
                 help="Bytes that a merged archive is to have at most.  [default: 536870912]"),
    click.option("--topic", metavar="TOPIC",
                 help="Merge nothing; part TOPIC from topics of another retention."),
    access_options,
    config_option,
    output_option,
)  # fmt: skip
rewrite_options = with_options(
    folder_argument,
    policy_option,
    click.option("--topic", metavar="TOPIC", help="Only archives with messages of this topic."),
    access_options,
    config_option,
    output_option,
)


@click.command()
@merge_options
def merge(
    out: Output, folder: Path, policy_file: Path, target_bytes: int | None, topic: str | None,
    access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Merge neighbouring archives of the store in DIR into larger ones.

    Compacted topics keep the newest message of each key. With --topic, instead, two archives take
    the place of each one that holds TOPIC together with topics of another retention: one has TOPIC
    alone. What was replaced goes after the policy's grace time, with the next run. Exit code 1 if
    something could not be done.
    """
    merge_with(out, embedded, folder, policy_file, target_bytes, topic, access, config_file)


def merge_with(
    out: Output, who: Who, folder: Path, policy_file: Path, target_bytes: int | None,
    topic: str | None, access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Merge archives, or separate a topic from others, with the given worker."""
    if topic is None:
        _done(
            out, who, folder, policy_file, access, config_file,
            worker_call("merge", target_bytes), lambda w: w.merge(target_bytes or TARGET_BYTES),
        )  # fmt: skip
        return
    if target_bytes is not None:
        raise click.UsageError("--topic parts archives, and takes no --target-bytes")
    _done(
        out, who, folder, policy_file, access, config_file,
        worker_call("part", topic), lambda w: w.part(topic),
    )  # fmt: skip


@click.command()
@rewrite_options
def compact(
    out: Output, folder: Path, policy_file: Path, topic: str | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Keep the newest message of each key in compacted topics of the store in DIR.

    As `tier merge`, but of archives of compacted topics alone, and of all of them, whatever their
    sizes. Exit code 1 if something could not be done.
    """
    compact_with(out, embedded, folder, policy_file, topic, access, config_file)


def compact_with(
    out: Output, who: Who, folder: Path, policy_file: Path, topic: str | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Compact compacted topics, with the given worker."""
    _done(
        out, who, folder, policy_file, access, config_file,
        worker_call("compact", topic), lambda w: w.compact(topic),
    )  # fmt: skip


@click.command()
@rewrite_options
def reencrypt(
    out: Output, folder: Path, policy_file: Path, topic: str | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Write archives of the store in DIR anew that are not under the keys of today.

    These are archives with messages of topics that have another key now in the file that --keys
    names, that have got one (`kvmq tier key make`), or that have none any more. What was replaced
    goes after the policy's grace time, with the next run; copies that others made stay as they are.
    Exit code 1 if something could not be done.
    """
    reencrypt_with(out, embedded, folder, policy_file, topic, access, config_file)


def reencrypt_with(
    out: Output, who: Who, folder: Path, policy_file: Path, topic: str | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Re-encrypt archives, with the given worker."""
    _done(
        out, who, folder, policy_file, access, config_file,
        worker_call("reencrypt", topic), lambda w: w.reencrypt(topic),
    )  # fmt: skip


def _done(
    out: Output, who: Who, folder: Path, policy_file: Path, access: Access,
    config_file: Path | None, does: str, work: Callable[[Worker], RunReport],
) -> None:  # fmt: skip
    with working(out, who, folder, policy_file, access, config_file, does=does) as found:
        done = work(found.worker)
    ended(out, done)
