"""The verb `tier merge`: archives into larger ones."""

from __future__ import annotations

from pathlib import Path

import click

from kvstore.cli.access import Access, access_options
from kvstore.cli.opening import config_option, folder_argument, open_store
from kvstore.cli.output import Output, output_option
from kvstore.cli.tier.options import policy_option, read_policy
from kvstore.cli.tier.run import ending, show


@click.command()
@folder_argument
@policy_option
@click.option("--target-bytes", type=click.IntRange(min=1), default=512 << 20, show_default=True,
              help="What a merged archive is to have at most.")  # fmt: skip
@access_options
@config_option
@output_option
def merge(
    out: Output, folder: Path, policy_file: Path, target_bytes: int, access: Access,
    config_file: Path | None,
) -> None:  # fmt: skip
    """Merge neighbouring archives of the store in DIR into larger ones.

    Compacted topics keep the newest message of each key. What was replaced goes after the policy's
    grace time, with the next run. Exit code 1 if something could not be done.
    """
    from tiering.worker import Worker

    policy = read_policy(policy_file)
    with (
        open_store(out, folder, config_file, access=access) as store,
        out.progress() as report,
        Worker(store, policy, progress=report) as worker,
        ending(worker),
    ):
        done = worker.merge(target_bytes)
    if out.json:
        out.document(done)
    else:
        show(out, done)
    if done.failed:
        click.get_current_context().exit(1)
