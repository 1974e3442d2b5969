"""The verb `spark compact`: `tier compact`, done by Spark's tasks."""

from __future__ import annotations

from typing import Any

import click

from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.terminal.output import Output
from kvstore.cli.tier.merge import compact_with, rewrite_options


@click.command()
@engine_options
@rewrite_options
def compact(out: Output, engine: Engine, **given: Any) -> None:
    """Keep the newest message of each key in compacted topics of the store in DIR.

    As `kvmq tier compact`; the places of archives must be seen by all of Spark's workers.
    """
    compact_with(out, engine.executor, **given)
