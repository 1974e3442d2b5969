"""The verb `spark merge`: `tier merge`, done by Spark's tasks."""

from __future__ import annotations

from typing import Any

import click

from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.terminal.output import Output
from kvstore.cli.tier.merge import merge_options, merge_with


@click.command()
@engine_options
@merge_options
def merge(out: Output, engine: Engine, **given: Any) -> None:
    """Merge neighbouring archives of the store in DIR into larger ones.

    As `kvmq tier merge`; the places of archives must be seen by all of Spark's workers.
    """
    merge_with(out, engine.executor, **given)
