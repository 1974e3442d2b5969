"""The verbs `erase ...`: remove messages from log and archives for good, and prove it.

Invariant: on a terminal nothing is erased before the plan was shown, and the answer was yes.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from kvstore.cli.terminal.opening import Instant, folder_argument, read_config
from kvstore.cli.terminal.options import Option, listed, policy_option, policy_option_at_need
from kvstore.cli.terminal.output import exit_if, show_report
from kvstore.cli.tier.worker import Job, job_options, worker_call


@click.group()
def erase() -> None:
    """Erase messages wherever they lie, and show that none is left.

    On a terminal each verb tells what it would erase, and asks first; --yes leaves that out.
    """


_erase_options: Option = listed(
    click.option("--dry-run", is_flag=True, help="Tell what would be done, and do nothing."),
    click.option("--yes", is_flag=True, help="Don't ask on a terminal."),
    click.option("--everywhere", is_flag=True,
                 help="Look for copies of a topic's messages in all topics; every archive is read "
                 "for that."),
    job_options,
)  # fmt: skip
_of_topic_option = click.option("--topic", "name", help="Only of this topic.")


@erase.command()
@folder_argument
@click.argument("name", metavar="TOPIC")
@click.option("--by-key", is_flag=True,
              help="Destroy the key that its archives are encrypted with.")  # fmt: skip
@policy_option_at_need
@_erase_options
def topic(
    job: Job, name: str, dry_run: bool, yes: bool, everywhere: bool, by_key: bool = False
) -> None:
    """Erase all messages of TOPIC that were put so far; the topic itself stays.

    Only archives that hold some are rewritten. Copies (dead letters, messages to be retried,
    delayed ones) are erased with it. With --by-key the topic's key is destroyed instead, in the
    file that --keys names: archives that are encrypted with it can be read by nobody any more,
    wherever copies of them are. Messages that stay readable are listed, and the exit code is 1;
    without --by-key they are erased.
    """
    if not by_key:
        if job.policy_file is None:
            raise click.UsageError("Missing option '--policy'.")
        _erase(job, {"topic": name}, dry_run, yes, everywhere)
    elif job.policy_file is not None:
        raise click.UsageError("--by-key moves nothing, so it takes no --policy")
    elif dry_run or everywhere:
        raise click.UsageError("--by-key destroys a key; it takes no --dry-run, --everywhere")
    else:
        _destroy_key(job, name, yes=yes)


@erase.command()
@folder_argument
@click.argument("key")
@_of_topic_option
@policy_option
@_erase_options
def key(job: Job, key: str, name: str | None, dry_run: bool, yes: bool, everywhere: bool) -> None:
    """Erase all messages with KEY that were put so far."""
    _erase(job, {"key": key, "topic": name}, dry_run, yes, everywhere)


@erase.command()
@folder_argument
@click.argument("time", type=Instant())
@_of_topic_option
@policy_option
@_erase_options
def before(
    job: Job, time: int, name: str | None, dry_run: bool, yes: bool, everywhere: bool
) -> None:
    """Erase all messages that were stored before TIME."""
    _erase(job, {"before": time, "topic": name}, dry_run, yes, everywhere)


def _erase(job: Job, wanted: dict[str, Any], dry_run: bool, yes: bool, everywhere: bool) -> None:
    """Erases messages, or shows the plan. Exit code 1 unless it is proven that nothing is left; for
    a plan, if something could not be looked at.
    """
    out = job.out
    call = "erasure_plan" if dry_run else "erase"
    does = worker_call(call, **wanted, everywhere=everywhere or None)
    wanted = wanted | {"everywhere": everywhere}
    if dry_run or _may_ask(yes):
        with job.working(does) as found:
            plan = found.worker.erasure_plan(**wanted)
        show_report(out, plan)
        if dry_run:
            return exit_if(plan.failed)
        click.confirm("Erase this for good?", abort=True, err=True)
    with job.working(does) as found:
        done = found.worker.erase(**wanted)
    show_report(out, done)
    if not out.json:
        if done.is_proven:
            out.text("everything was searched again, and nothing is left", fg="green")
        else:
            out.text("not proven: something may be left", fg="red", bold=True)
    return exit_if(not done.is_proven)


def _may_ask(yes: bool) -> bool:
    """Whether a person is there to answer."""
    return not yes and sys.stdin.isatty()


def _destroy_key(job: Job, name: str, *, yes: bool) -> None:
    """Destroys the topic's key. Exit code 1 unless nothing of the topic can be read any more."""
    from tiering.policy.policy import Policy

    if read_config(job.config_file, job.access).archives.keys is None:
        raise click.UsageError("--by-key needs --keys FILE, the key file that the key is in")
    if _may_ask(yes):
        click.confirm(
            f"Destroy the key of topic {name!r} for good? What is encrypted with it can be read by "
            "nobody then", abort=True, err=True,
        )  # fmt: skip
    with job.working(worker_call("destroy_key", name), policy=Policy()) as found:
        done = found.worker.destroy_key(name)
    out = job.out
    show_report(out, done)
    if not out.json:
        if done.is_whole:
            out.text("the key is destroyed, and nothing of the topic can be read", fg="green")
        else:
            rest = "the key is destroyed; what is readable, in segments or failed may be read still"
            out.text(f"{rest}: erase it without --by-key", fg="red", bold=True)
    exit_if(not done.is_whole)
