"""The verbs `spark erase ...`: `erase ...`, done by Spark's tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvstore.cli.message.erase import (
    before_options,
    erase_options,
    erase_with,
    key_options,
    name_argument,
)
from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.terminal.opening import folder_argument
from kvstore.cli.terminal.output import Output


@click.group()
def erase() -> None:
    """Erase messages from log and archives, and prove it.

    As `kvmq erase`, with several segments and archives at once. The store's folder, and the places
    of archives, must be seen by all of Spark's workers.
    """


@erase.command()
@engine_options
@folder_argument
@name_argument
@erase_options
def topic(out: Output, folder: Path, name: str, engine: Engine, **given: Any) -> None:
    """Erase all messages of TOPIC that were put so far; the topic itself stays."""
    erase_with(out, engine.executor, folder, {"topic": name}, **given)


@erase.command()
@engine_options
@key_options
def key(
    out: Output, folder: Path, key: str, name: str | None, engine: Engine, **given: Any
) -> None:
    """Erase all messages with KEY that were put so far."""
    erase_with(out, engine.executor, folder, {"key": key, "topic": name}, **given)


@erase.command()
@engine_options
@before_options
def before(
    out: Output, folder: Path, time: int, name: str | None, engine: Engine, **given: Any
) -> None:
    """Erase all messages that were stored before TIME."""
    erase_with(out, engine.executor, folder, {"before": time, "topic": name}, **given)
