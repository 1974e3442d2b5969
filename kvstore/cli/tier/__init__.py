"""The verbs `tier ...`: archives of old segments.

- `plan`: what a policy would move, cost and save.
- `run`: have a policy done; `merge`: archives into larger ones.
- `attach`: archives from elsewhere into a store.
- `listing`: which archives there are, and what was done to them.
- `checking`: every archive's bytes, the catalog, and orphans.
- `options`: what these verbs share.
"""

from __future__ import annotations

import click

from kvstore.cli.tier.attach import attach
from kvstore.cli.tier.checking import verify
from kvstore.cli.tier.listing import history, list_
from kvstore.cli.tier.merge import merge
from kvstore.cli.tier.plan import plan
from kvstore.cli.tier.run import run

__all__ = ["tier"]


@click.group()
def tier() -> None:
    """Archives of old segments: what a policy moves and costs, moving it, checking them."""


for _verb in (plan, run, merge, attach, list_, history, verify):
    tier.add_command(_verb)
