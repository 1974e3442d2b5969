"""The verbs `tier ...`, archives of old segments, and `erase ...`.

- `plan`: the moves, costs and savings of a policy.
- `rewriting`: carrying out a policy; archives in the place of others.
- `archives`: the archives of a store, listed, checked, brought from elsewhere; their keys.
- `erasing`: messages gone from log and archives.
- `worker`: the code that these verbs share, with each other and with those of `spark`.

Not in here: the work itself, which is `tiering`. Begin with `plan`. May import `cli.terminal`, and
every room that `cli` may.
"""

from __future__ import annotations

import click

from kvstore.cli.tier.archives import attach, history, key, list_, verify
from kvstore.cli.tier.plan import plan
from kvstore.cli.tier.rewriting import compact, merge, reencrypt, run

__all__ = ["tier"]


@click.group()
def tier() -> None:
    """Archives of old segments: plan and carry out a policy, list, check, merge them."""


for _verb in (plan, run, merge, compact, reencrypt, attach, key, list_, history, verify):
    tier.add_command(_verb)
