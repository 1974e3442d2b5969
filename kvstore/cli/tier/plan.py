"""The verb `tier plan`: the moves of a policy, their costs and savings; and the price options."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

from kvstore.cli.terminal.opening import config_option, folder_argument, open_store, time_text
from kvstore.cli.terminal.options import (
    Access,
    LocalPath,
    Option,
    access_options,
    one_argument,
    policy_option,
    read_policy,
)
from kvstore.cli.terminal.output import Output, output_option, size_text

if TYPE_CHECKING:
    from kvstore import StoreStats
    from kvstore.serve.metrics.store_metrics import TierCosts
    from tiering.policy.plan import Plan
    from tiering.policy.policy import Policy, Prices

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


storage_prices: Option = one_argument(
    "storage",
    StoragePrices,
    hot=click.option("--price-hot", "hot", type=PRICE,
                     help="Of a GB on the store's disk for a month."),
    warm=click.option("--price-warm", "warm", type=PRICE,
                      help="Of a GB in the place warm for a month."),
    cold=click.option("--price-cold", "cold", type=PRICE,
                      help="Of a GB in the place cold for a month."),
    currency=click.option("--currency", help="What prices are in; only shown."),
)  # fmt: skip
"""The options `--price-hot`, `-warm`, `-cold` and `--currency`, as the argument `storage`."""
_SHARE = click.FloatRange(0, 1)


def tier_costs(policy: Policy) -> TierCosts:
    """The cost of the bytes stored in each tier for a month, as `plan` counts it, for metrics."""
    from tiering.policy.plan import Amounts, storage_costs

    prices = policy.prices

    def costs(stats: StoreStats) -> tuple[str, dict[str, float]]:
        archived = {tier.tier: tier.bytes for tier in stats.tiers}
        stored = Amounts(stats.log_bytes, archived.get("warm", 0), archived.get("cold", 0))
        return prices.currency, storage_costs(prices, stored)

    return costs


@click.command()
@folder_argument
@policy_option
@storage_prices
@click.option("--price-requests", type=PRICE, help="Of 1,000 requests to the place cold.")
@click.option("--price-transfer", type=PRICE, help="Of a GB read from the place cold.")
@click.option(
    "--ratio",
    type=click.FloatRange(0, 10, min_open=True),
    help="Bytes of an archive for one of records; else measured, or assumed.",
)
@click.option(
    "--read-share",
    type=_SHARE,
    default=0.0,
    show_default=True,
    help="How much of what is cold is read each month.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=LocalPath(dir_okay=False),
    help="Draw it too: .svg, .png or .pdf. Needs kvmq[plot].",
)
@access_options
@config_option
@output_option
def plan(
    out: Output, folder: Path, policy_file: Path, config_file: Path | None, ratio: float | None,
    read_share: float, plot: Path | None, price_requests: float | None,
    price_transfer: float | None, storage: StoragePrices, access: Access,
) -> None:  # fmt: skip
    """Show the moves of a policy in the store in DIR, with their costs and savings a month.

    Nothing is changed. Costs are those of the coming twelve months if as much comes in as so far,
    for this policy and for others.
    """
    from tiering.operations.inspection import plan_of

    policy = read_policy(policy_file)
    prices = storage.of(policy.prices, requests=price_requests, transfer=price_transfer)
    policy = msgspec.structs.replace(policy, prices=prices)
    store_open = open_store(out, folder, config_file, access=access, read_only=True, own=True)
    with store_open as store, out.progress() as report:
        made = plan_of(store, policy, ratio=ratio, read_share=read_share, progress=report)
    if plot is not None:
        from tiering.policy.plan import plot_plan

        plot_plan(made, plot)
    if out.json:
        out.document(made)
    else:
        _show(out, made)


def _show(out: Output, made: Plan) -> None:
    _show_moves(out, made)
    how = "measured" if made.is_ratio_measured else "assumed"
    rows: list[tuple[str, str]] = [
        ("now", _tiers(made.before.hot, made.before.warm, made.before.cold)),
        ("then", _tiers(made.after.hot, made.after.warm, made.after.cold)),
        ("bytes of archives to bytes of records", f"{made.ratio:.2f} ({how})"),
        ("comes in each month", size_text(made.bytes_per_month) if made.bytes_per_month else "-"),
    ]
    if made.held_segment is not None:
        until = (
            "without limit" if made.held_until is None else f"until {time_text(made.held_until)}"
        )
        topic = f", for topic {made.held_by}" if made.held_by else ""
        rows.append((f"segment {made.held_segment} stays hot", until + topic))
    if made.upload_seconds:
        rows.append(("uploading takes", f"{made.upload_seconds:,.0f} s"))
    out.table(("what", "value"), rows)
    if not made.bytes_per_month:
        out.text("what is stored spans less than an hour: costs are of what is there alone")
    _show_costs(out, made)


def _show_moves(out: Output, made: Plan) -> None:
    if not made.moves:
        out.text("nothing is due")
        return
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for move in made.moves:
        found = sums[move.to or "deleted", move.retention_class or "no topic's any more"]
        for i, more in enumerate((1, move.bytes, move.bytes_after)):
            found[i] += more
    rows = [
        (to, name, count, size_text(size), size_text(after))
        for (to, name), (count, size, after) in sorted(sums.items())
    ]
    title = "due, but it waits for its hours" if made.waits_for_hours else "due now"
    columns = ("to", "retention class", "archives", "bytes", "bytes then")
    out.table(columns, rows, title, right=("bytes", "bytes then"))


def _show_costs(out: Output, made: Plan) -> None:
    rows = []
    for found in made.alternatives:
        last = found.months[-1].bytes
        rows.append(
            (
                found.name,
                _money(found.months[1].cost),
                _money(found.months[-1].cost),
                _money(found.per_month),
                _money(found.saves_per_month),
                size_text(last.hot),
                size_text(last.warm),
                size_text(last.cold),
                found.what,
            )
        )
    month = made.alternatives[0].months[-1].month
    columns = (
        "policy", "first month", f"month {month}", "mean", "saves", "hot", "warm", "cold", "what"
    )  # fmt: skip
    title = f"{made.currency} a month; saved against all hot; bytes after {month} months"
    out.table(columns, rows, title, right=columns[1:8])


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if abs(amount) >= 1 or amount == 0 else f"{amount:.3g}"


def _tiers(hot: float, warm: float, cold: float) -> str:
    return f"hot {size_text(hot)}, warm {size_text(warm)}, cold {size_text(cold)}"
