"""The verbs `erase ...`: have messages gone from log and archives, and show that they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvstore.cli.access import Access, access_options
from kvstore.cli.opening import (
    Instant,
    config_option,
    folder_argument,
    read_config,
)
from kvstore.cli.output import Output, output_option
from kvstore.cli.report import show_report
from kvstore.cli.tier.options import policy_option, policy_option_at_need
from kvstore.cli.tier.working import Who, embedded, with_options, working


@click.group()
def erase() -> None:
    """Have messages gone wherever they lie, and show that they are."""


name_argument = click.argument("name", metavar="TOPIC")
_shared = (access_options, config_option, output_option)
erase_options = with_options(policy_option, *_shared)
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
        erase_with(
            out, embedded, folder, {"topic": name}, policy_file=policy_file, access=access,
            config_file=config_file,
        )  # fmt: skip


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
    access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Have messages erased, by whoever works. Exit code 1 unless it is proven."""
    with working(out, who, folder, policy_file, access, config_file) as found:
        done = found.worker.erase(**what)
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

    if read_config(config_file, access).archives.keys is None:
        raise click.UsageError("--by-key needs --keys FILE, the key file that the key is in")
    with working(out, embedded, folder, Policy(), access, config_file) as found:
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
