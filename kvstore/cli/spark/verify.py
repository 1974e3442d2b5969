"""The verb `spark verify`: `tier verify`, done by Spark's tasks."""

from __future__ import annotations

from typing import Any

import click

from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.terminal.output import Output
from kvstore.cli.tier.checking import verify_options, verify_with


@click.command()
@engine_options
@verify_options
def verify(out: Output, engine: Engine, **given: Any) -> None:
    """Check every archive of the store in DIR, and list objects in no catalog.

    As `kvmq tier verify`, with an archive for each task; the places of archives must be seen by all
    of Spark's workers.
    """
    verify_with(out, engine.executor, **given)
