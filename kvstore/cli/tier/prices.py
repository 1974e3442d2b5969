"""The options of verbs that show costs: the prices of keeping a GB, tier by tier."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

if TYPE_CHECKING:
    from tiering.policy.policy import Prices

PRICE: Final = click.FloatRange(min=0)


class StoragePrices(NamedTuple):
    """The prices on the command line; None: not given."""

    hot: float | None
    warm: float | None
    cold: float | None
    currency: str | None

    def of(
        self, prices: Prices, *, requests: float | None = None, transfer: float | None = None
    ) -> Prices:
        """The prices, overridden by these; `requests` and `transfer` are for cold."""
        given = {
            "hot": _tier(prices.hot, gb_month=self.hot),
            "warm": _tier(prices.warm, gb_month=self.warm),
            "cold": _tier(prices.cold, gb_month=self.cold, requests=requests, transfer=transfer),
        }
        if self.currency is not None:
            given["currency"] = self.currency
        return msgspec.structs.replace(prices, **given)


def _tier(price: Any, **given: float | None) -> Any:
    return msgspec.structs.replace(price, **{k: v for k, v in given.items() if v is not None})


def storage_prices(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options `--price-hot`, `--price-warm`, `--price-cold` and `--currency`, as
    the argument `storage`.
    """

    @click.option("--price-hot", type=PRICE, help="Of a GB on the store's disk for a month.")
    @click.option("--price-warm", type=PRICE, help="Of a GB in the place warm for a month.")
    @click.option("--price-cold", type=PRICE, help="Of a GB in the place cold for a month.")
    @click.option("--currency", help="What prices are in; only shown.")
    @functools.wraps(verb)
    def with_prices(
        *args: Any, price_hot: float | None, price_warm: float | None, price_cold: float | None,
        currency: str | None, **options: Any,
    ) -> Any:  # fmt: skip
        storage = StoragePrices(price_hot, price_warm, price_cold, currency)
        return verb(*args, storage=storage, **options)

    return with_prices
