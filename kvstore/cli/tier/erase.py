"""The verbs `erase ...`: remove messages from log and archives for good, and prove it.

Invariant: on a terminal nothing is erased before the plan was shown, and the answer was yes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvstore.cli.terminal.opening import Instant, config_option, folder_argument, read_config
from kvstore.cli.terminal.options import (
    Access,
    access_options,
    policy_option,
    policy_option_at_need,
)
from kvstore.cli.terminal.output import Output, output_option, show_report
from kvstore.cli.tier.worker import Who, embedded, with_options, worker_call, working


@click.group()
def erase() -> None:
    """Erase messages wherever they lie, and show that none is left.

    On a terminal each verb tells what it would erase, and asks first; --yes leaves that out.
    """


name_argument = click.argument("name", metavar="TOPIC")
_shared = (access_options, config_option, output_option)
_yes = click.option("--yes", is_flag=True, help="Don't ask on a terminal.")
_dry_run = click.option("--dry-run", is_flag=True, help="Tell what would be done, and do nothing.")
_everywhere = click.option(
    "--everywhere", is_flag=True,
    help="Look for copies of a topic's messages in all topics; every archive is read for that.",
)  # fmt: skip
erase_options = with_options(policy_option, _dry_run, _yes, _everywhere, *_shared)
key_options = with_options(
    folder_argument,
    click.argument("key"),
    click.option("--topic", "name", help="Only of this topic."),
    erase_options,
)
before_options = with_options(
    folder_argument,
    click.argument("time", type=Instant()),
    click.option("--topic", "name", help="Only of this topic."),
    erase_options,
)


@erase.command()
@folder_argument
@name_argument
@click.option("--by-key", is_flag=True,
              help="Destroy the key that its archives are encrypted with.")  # fmt: skip
@with_options(policy_option_at_need, _dry_run, _yes, _everywhere, *_shared)
def topic(
    out: Output, folder: Path, name: str, by_key: bool, policy_file: Path | None, yes: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Erase all messages of TOPIC that were put so far; the topic itself stays.

    Only archives that hold some are rewritten. Copies (dead letters, messages to be retried,
    delayed ones) are erased with it. With --by-key the topic's key is destroyed instead, in the
    file that --keys names: archives that are encrypted with it can be read by nobody any more,
    wherever copies of them are. What can be read all the same is listed, with exit code 1; without
    --by-key it is erased.
    """
    if by_key:
        if policy_file is not None:
            raise click.UsageError("--by-key moves nothing, so it takes no --policy")
        if given.pop("dry_run") or given.pop("everywhere"):
            raise click.UsageError("--by-key destroys a key; it takes no --dry-run, --everywhere")
        given.pop("everywhere", None)
        _destroy(out, folder, name, yes=yes, **given)
    elif policy_file is None:
        raise click.UsageError("Missing option '--policy'; only --by-key does without")
    else:
        erase_with(
            out, embedded, folder, {"topic": name}, policy_file=policy_file, yes=yes, **given
        )


@erase.command()
@key_options
def key(out: Output, folder: Path, key: str, name: str | None, **given: Any) -> None:
    """Erase all messages with KEY that were put so far."""
    erase_with(out, embedded, folder, {"key": key, "topic": name}, **given)


@erase.command()
@before_options
def before(out: Output, folder: Path, time: int, name: str | None, **given: Any) -> None:
    """Erase all messages that were stored before TIME."""
    erase_with(out, embedded, folder, {"before": time, "topic": name}, **given)


def erase_with(
    out: Output, who: Who, folder: Path, what: dict[str, Any], *, policy_file: Path,
    dry_run: bool, yes: bool, everywhere: bool, access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Erase messages with the given worker, or show the plan. Exit code 1 unless it is proven that
    nothing is left; for a plan, if something could not be looked at.
    """
    does = worker_call("erase", **what, everywhere=everywhere or None)
    what = what | {"everywhere": everywhere}
    if dry_run or _may_ask(yes):
        with working(out, who, folder, policy_file, access, config_file, does=does) as found:
            plan = found.worker.erasure_plan(**what)
        show_report(out, plan)
        if dry_run:
            if plan.failed:
                click.get_current_context().exit(1)
            return
        click.confirm("Erase this for good?", abort=True, err=True)
    with working(out, who, folder, policy_file, access, config_file, does=does) as found:
        done = found.worker.erase(**what)
    show_report(out, done)
    if not out.json:
        if done.is_proven:
            out.text("everything was searched again, and nothing of it is left", fg="green")
        else:
            out.text("not proven: something may be left", fg="red", bold=True)
    if not done.is_proven:
        click.get_current_context().exit(1)


def _may_ask(yes: bool) -> bool:
    """Whether a person is there to answer."""
    return not yes and sys.stdin.isatty()


def _destroy(
    out: Output, folder: Path, name: str, *, yes: bool, access: Access, config_file: Path | None
) -> None:
    """Destroy the topic's key. Exit code 1 unless nothing of the topic can be read any more."""
    from tiering.policy.policy import Policy

    if read_config(config_file, access).archives.keys is None:
        raise click.UsageError("--by-key needs --keys FILE, the key file that the key is in")
    if _may_ask(yes):
        click.confirm(
            f"Destroy the key of topic {name!r} for good? What is encrypted with it can be read by "
            "nobody then", abort=True, err=True,
        )  # fmt: skip
    does = worker_call("destroy_key", name)
    with working(out, embedded, folder, Policy(), access, config_file, does=does) as found:
        done = found.worker.destroy_key(name)
    show_report(out, done)
    if not out.json:
        if done.is_whole:
            out.text("the key is destroyed, and nothing of the topic can be read", fg="green")
        else:
            told = "the key is destroyed; what is readable, in segments or failed may be read still"
            out.text(f"{told}: erase it without --by-key", fg="red", bold=True)
    if not done.is_whole:
        click.get_current_context().exit(1)
