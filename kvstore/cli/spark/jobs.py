"""The verbs `spark tier`, `merge`, `compact`, `reencrypt`, `verify` and `erase`: `tier run`, those
of the same name under `tier`, and `erase`, done by Spark's tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.terminal.opening import folder_argument
from kvstore.cli.terminal.output import Output
from kvstore.cli.tier.archives import verify_options, verify_with
from kvstore.cli.tier.erase import (
    before_options,
    erase_options,
    erase_with,
    key_options,
    name_argument,
)
from kvstore.cli.tier.run import (
    compact_with,
    merge_options,
    merge_with,
    reencrypt_with,
    rewrite_options,
    run_options,
    run_with,
)


@click.command()
@engine_options
@run_options
def tier(out: Output, engine: Engine, **given: Any) -> None:
    """Carry out a policy in the store in DIR until nothing is due; --watch merges, too.

    As `kvmq tier run`, with several segments and archives at once; what comes of it is the same,
    byte for byte. The store is opened here; its folder, and the places of archives, must be seen by
    all of Spark's workers.
    """
    run_with(out, engine.executor, **given)


@click.command()
@engine_options
@merge_options
def merge(out: Output, engine: Engine, **given: Any) -> None:
    """Merge neighbouring archives of the store in DIR into larger ones.

    As `kvmq tier merge`; the places of archives must be seen by all of Spark's workers.
    """
    merge_with(out, engine.executor, **given)


@click.command()
@engine_options
@rewrite_options
def compact(out: Output, engine: Engine, **given: Any) -> None:
    """Keep the newest message of each key in compacted topics of the store in DIR.

    As `kvmq tier compact`; the places of archives must be seen by all of Spark's workers.
    """
    compact_with(out, engine.executor, **given)


@click.command()
@engine_options
@rewrite_options
def reencrypt(out: Output, engine: Engine, **given: Any) -> None:
    """Write archives of the store in DIR anew that are not under the keys of today.

    As `kvmq tier reencrypt`; the places of archives must be seen by all of Spark's workers. Keys go
    along with what tasks are told.
    """
    reencrypt_with(out, engine.executor, **given)


@click.command()
@engine_options
@verify_options
def verify(out: Output, engine: Engine, **given: Any) -> None:
    """Check every archive of the store in DIR, and list objects in no catalog.

    As `kvmq tier verify`, with an archive for each task; the places of archives must be seen by all
    of Spark's workers.
    """
    verify_with(out, engine.executor, **given)


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
