"""The verb `tier merge`: archives into larger ones."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.opening import config_option, folder_argument, open_store
from kvstore.cli.output import Output, output_option
from kvstore.cli.tier.options import (
    keys_option,
    place_option,
    policy_option,
    read_keys,
    read_policy,
)
from kvstore.cli.tier.run import ending, show


@click.command()
@folder_argument
@policy_option
@click.option("--target-bytes", type=click.IntRange(min=1), default=512 << 20, show_default=True,
              help="What a merged archive is to have at most.")  # fmt: skip
@place_option
@keys_option
@config_option
@output_option
def merge(
    out: Output, folder: Path, policy_file: Path, target_bytes: int,
    settings: tuple[tuple[str, str], ...], keys_file: Path | None, config_file: Path | None,
) -> None:  # fmt: skip
    """Merge neighbouring archives of the store in DIR into larger ones.

    Compacted topics keep the newest message of each key. What was replaced goes after the policy's
    grace time, with the next run. Exit code 1 if something could not be done.
    """
    from tiering.worker import Worker

    policy = read_policy(policy_file)
    with (
        open_store(out, folder, config_file) as store,
        out.progress() as report,
        Worker(
            store, policy, keys=read_keys(keys_file), options=dict(settings), progress=report
        ) as worker,
        ending(worker),
    ):
        done = worker.merge(target_bytes)
    if out.json:
        out.document(done)
    else:
        show(out, done)
    if done.failed:
        click.get_current_context().exit(1)
