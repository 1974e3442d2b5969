"""The verb `spark tier`: `tier run`, done by Spark's tasks."""

from __future__ import annotations

from typing import Any

import click

from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.terminal.output import Output
from kvstore.cli.tier.run import run_options, run_with


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
