"""The verbs `erase ...`: have messages gone from log and archives, and show that they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click

from kvstore.cli.access import Access, access_options
from kvstore.cli.opening import (
    Instant,
    config_option,
    folder_argument,
    open_store,
    read_config,
)
from kvstore.cli.output import Output, output_option
from kvstore.cli.report import show_report
from kvstore.cli.tier.options import policy_option, policy_option_at_need, read_policy
from kvstore.cli.tier.run import ending

Verb: TypeAlias = Callable[..., Any]


@click.group()
def erase() -> None:
    """Have messages gone wherever they lie, and show that they are."""


def _options(verb: Verb) -> Verb:
    for option in (output_option, config_option, access_options, policy_option):
        verb = option(verb)
    return verb


@erase.command()
@folder_argument
@click.argument("name", metavar="TOPIC")
@click.option("--by-key", is_flag=True,
              help="Destroy the key that its archives are encrypted with.")  # fmt: skip
@policy_option_at_need
@access_options
@config_option
@output_option
def topic(
    out: Output, folder: Path, name: str, by_key: bool, policy_file: Path | None, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Erase all messages of TOPIC that were put so far; the topic itself stays.

    With --by-key its key is destroyed, in the file that --keys names: archives that are encrypted
    with it can be read by nobody any more, wherever copies of them are. Nothing is asked before.
    What can be read all the same is listed, with exit code 1; without --by-key it is erased.
    """
    if by_key:
        if policy_file is not None:
            raise click.UsageError("--by-key moves nothing, so it takes no --policy")
        _destroy(out, folder, name, access, config_file)
    elif policy_file is None:
        raise click.UsageError("Missing option '--policy'; only --by-key does without")
    else:
        what = {"topic": name}
        _erase(out, folder, what, policy_file=policy_file, access=access, config_file=config_file)


@erase.command()
@folder_argument
@click.argument("key")
@click.option("--topic", "name", help="Only of this topic.")
@_options
def key(out: Output, folder: Path, key: str, name: str | None, **given: Any) -> None:
    """Erase all messages with KEY that were put so far."""
    _erase(out, folder, {"key": key, "topic": name}, **given)


@erase.command()
@folder_argument
@click.argument("time", type=Instant())
@click.option("--topic", "name", help="Only of this topic.")
@_options
def before(out: Output, folder: Path, time: int, name: str | None, **given: Any) -> None:
    """Erase all messages that were stored before TIME."""
    _erase(out, folder, {"before": time, "topic": name}, **given)


def _erase(
    out: Output, folder: Path, what: dict[str, Any], *, policy_file: Path, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Exit code 1 unless it is proven."""
    from tiering.worker import Worker

    policy = read_policy(policy_file)
    with (
        open_store(out, folder, config_file, access=access) as store,
        out.progress() as report,
        Worker(store, policy, progress=report) as worker,
        ending(worker),
    ):
        done = worker.erase(**what)
    show_report(out, done)
    if not out.json:
        if done.is_proven:
            out.text("everything was read again, and nothing of it is left", fg="green")
        else:
            out.text("not proven: something may be left", fg="red", bold=True)
    if not done.is_proven:
        click.get_current_context().exit(1)


def _destroy(
    out: Output, folder: Path, name: str, access: Access, config_file: Path | None
) -> None:
    """Exit code 1 unless nothing of the topic can be read any more."""
    from tiering.policy import Policy
    from tiering.worker import Worker

    if read_config(config_file, access).archives.keys is None:
        raise click.UsageError("--by-key needs --keys FILE, the key file that the key is in")
    with (
        open_store(out, folder, config_file, access=access) as store,
        out.progress() as report,
        Worker(store, Policy(), progress=report) as worker,
        ending(worker),
    ):
        done = worker.destroy_key(name)
    show_report(out, done)
    if not out.json:
        if done.is_whole:
            out.text("the key is destroyed, and nothing of the topic can be read", fg="green")
        else:
            told = "the key is destroyed; what is readable, in segments or failed may be read still"
            out.text(f"{told}: erase it without --by-key", fg="red", bold=True)
    if not done.is_whole:
        click.get_current_context().exit(1)
