"""The options that `spark sql` and `spark report` share: the source of the views, and their
time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvstore.cli.spark.options import options_of
from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.tier.options import policy_option_at_need, read_policy
from kvstore.cli.tier.prices import StoragePrices, storage_prices

if TYPE_CHECKING:
    from tiering.policy.policy import Prices


class Moment(click.ParamType[int]):
    """A day or a moment in ISO 8601, UTC if it does not say; in ms since the epoch."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType`."""
        if isinstance(value, int):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not like 2026-11-21 or 2026-11-21T18:00", param, ctx)
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)


class Asked(NamedTuple):
    """The options of the views on the command line: access to archives, prices, the time."""

    access: Access
    prices: Prices
    now_ms: int | None
    skip_damaged: bool

    @property
    def options(self) -> dict[str, str]:
        """The options of the tables for these settings."""
        options = options_of(self.access)
        if self.skip_damaged:
            options["damaged"] = "skip"
        return options


def view_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that views have, as the argument `asked`."""

    @click.option("--as-of", "now_ms", type=Moment(),
                  help="The time that ages count back from; default: now.")  # fmt: skip
    @click.option("--skip-damaged", is_flag=True,
                  help="Leave out what can't be read, and log it, instead of failing.")  # fmt: skip
    @policy_option_at_need
    @storage_prices
    @access_options
    @functools.wraps(verb)
    def with_views(
        *args: Any, access: Access, storage: StoragePrices, policy_file: Path | None,
        skip_damaged: bool, now_ms: int | None, **options: Any,
    ) -> Any:  # fmt: skip
        from tiering.policy.policy import Prices

        prices = read_policy(policy_file).prices if policy_file is not None else Prices()
        asked = Asked(access, storage.of(prices), now_ms, skip_damaged)
        return verb(*args, asked=asked, **options)

    return with_views
