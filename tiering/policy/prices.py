"""Prices: the cost of storing, requesting and transferring data, tier by tier.

The idea: three figures a tier, each as it stands in a provider's price list. The defaults are
examples, of the size that public price lists of large clouds showed in 2026 for a region in the
United States: an SSD volume, a volume of large disks, an object store in its standard class. Users
should give their own; only plans and Spark's views use them.

Invariants: a price is finite and not negative; a GB is 10^9 bytes, a month 30 days.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tiering.errors import PolicyIllegal

GB: Final = 1_000_000_000
"""Bytes of a GB, as price lists count."""
MONTH: Final = 30 * 86_400.0
"""Seconds of a month, as durations count."""


class TierPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier's prices, in `Prices.currency`: `gb_month` for a GB kept for a month, `requests` for
    1,000 requests, `transfer` for a GB read out of it (leave it at 0 where reading is free, as it
    mostly is inside one region).
    """

    gb_month: float = 0.0
    requests: float = 0.0
    transfer: float = 0.0


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prices of each tier; the defaults are examples, see the module."""

    hot: TierPrice = TierPrice(gb_month=0.08)
    warm: TierPrice = TierPrice(gb_month=0.045)
    cold: TierPrice = TierPrice(gb_month=0.023, requests=0.005)
    currency: str = "USD"


def check_prices(prices: Prices) -> None:
    """Raises `PolicyIllegal` for a value that is no price."""
    for tier in ("hot", "warm", "cold"):
        price = getattr(prices, tier)
        for name in price.__struct_fields__:
            value = getattr(price, name)
            if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
                raise PolicyIllegal(
                    f"prices.{tier}.{name} is {value!r}; it must be a finite number, 0 or more"
                )
