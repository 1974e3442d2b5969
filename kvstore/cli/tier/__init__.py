"""The verbs `tier ...`: archives of old segments.

- `plan`: the moves, costs and savings of a policy.
- `run`: carrying out a policy.
- `merge`: archives in the place of others: merged, compacted, under the keys of today.
- `key`: the key file of encrypted topics.
- `attach`: archives from elsewhere into a store.
- `listing`: the archives of a store, and their history.
- `checking`: every archive's bytes, the catalog, and orphans.
- `options`, `working`: the code that these verbs share, with each other and with those of `spark`.
"""

from __future__ import annotations

import click

from kvstore.cli.tier.attach import attach
from kvstore.cli.tier.checking import verify
from kvstore.cli.tier.key import key
from kvstore.cli.tier.listing import history, list_
from kvstore.cli.tier.merge import compact, merge, reencrypt
from kvstore.cli.tier.plan import plan
from kvstore.cli.tier.run import run

__all__ = ["tier"]


@click.group()
def tier() -> None:
    """Archives of old segments: plan and carry out a policy, list, check, merge them."""


for _verb in (plan, run, merge, compact, reencrypt, attach, key, list_, history, verify):
    tier.add_command(_verb)
