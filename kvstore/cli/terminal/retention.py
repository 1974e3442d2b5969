"""Retention on the command line: `hot=1d,warm=7d,cold=30d`, as it is given and shown."""

from __future__ import annotations

from typing import Any, Final

import click

from kvstore import Retention, Store
from kvstore.cli.terminal.opening import time_text
from kvstore.clock import whole_ms

NONE: Final = "none"
_TIERS: Final = ("hot", "warm", "cold")


class RetentionText(click.ParamType[Retention]):
    """`hot=1d,warm=7d,cold=30d`; the policy decides for tiers that are not named, and for
    `none`.
    """

    name = "TIER=TIME,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Retention:
        """See `click.ParamType`."""
        from tiering.policy.policy import parse_duration

        if isinstance(value, Retention):
            return value
        found: dict[str, float] = {}
        for word in [] if value == NONE else str(value).split(","):
            tier, _, text = word.strip().partition("=")
            milliseconds = parse_duration(text)
            if tier not in _TIERS or milliseconds is None or tier in found:
                self.fail(
                    f"{value!r} is not like hot=1d,warm=7d,cold=30d; {NONE!r} is no retention of "
                    "the topic's own",
                    param,
                    ctx,
                )
            found[tier] = milliseconds / 1000
        return Retention(
            hot_for=found.get("hot"), warm_for=found.get("warm"), cold_for=found.get("cold")
        )


def retention_text(retention: Retention) -> str:
    """The text that `RetentionText` reads as that retention."""
    from tiering.policy.policy import format_duration

    given = {tier: getattr(retention, f"{tier}_for") for tier in _TIERS}
    words = [f"{t}={format_duration(whole_ms(s))}" for t, s in given.items() if s is not None]
    return ",".join(words) or NONE


def shared_archives(store: Store, topic: str) -> tuple[dict[str, Any], str]:
    """The archives that a topic's new retention does not reach, for machines and for people:
    archives that hold other topics, too, stay until these expire. `topic` is the name in the store.
    """
    from tiering import held_together

    found = held_together(store, topic)
    values = {"shared_archives": len(found.archives), "shared_until": found.until}
    if not found.archives:
        return values, ""
    many = len(found.archives) > 1
    until = "for ever" if found.until is None else f"until {time_text(found.until)}"
    return values, (
        f"{len(found.archives):,} archive{'s' * many} hold{'s' * (not many)} other topics, too, "
        f"and {'stay' if many else 'stays'} {until}; "
        f"`kvmq tier merge DIR --policy FILE --topic {topic}` parts {'them' if many else 'it'}"
    )
