"""The verbs `erase ...`: have messages gone from log and archives, and show that they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click

from kvstore.cli.access import Access, access_options
from kvstore.cli.opening import Instant, config_option, folder_argument, open_store
from kvstore.cli.output import Output, output_option
from kvstore.cli.report import show_report
from kvstore.cli.tier.options import policy_option, read_policy
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
@_options
def topic(out: Output, folder: Path, name: str, **given: Any) -> None:
    """Erase all messages of TOPIC that were put so far; the topic itself stays."""
    _erase(out, folder, {"topic": name}, **given)


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
