"""The verb `spark reencrypt`: `tier reencrypt`, done by Spark's tasks."""

from __future__ import annotations

from typing import Any

import click

from kvstore.cli.spark.options import Engine, engine_options
from kvstore.cli.terminal.output import Output
from kvstore.cli.tier.merge import reencrypt_with, rewrite_options


@click.command()
@engine_options
@rewrite_options
def reencrypt(out: Output, engine: Engine, **given: Any) -> None:
    """Write archives of the store in DIR anew that are not under the keys of today.

    As `kvmq tier reencrypt`; the places of archives must be seen by all of Spark's workers. Keys go
    along with what tasks are told.
    """
    reencrypt_with(out, engine.executor, **given)
