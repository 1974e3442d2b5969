"""The options that verbs `spark ...` share: which Spark runs them, its settings; for `sql` and
`report` also the source of their views, and the time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvstore.cli.terminal.options import (
    Access,
    Option,
    Setting,
    access_options,
    one_argument,
    policy_option_at_need,
    read_policy,
)
from kvstore.cli.terminal.output import Report
from kvstore.cli.tier.plan import StoragePrices, storage_prices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiering.executor.pool import Executor
    from tiering.policy.policy import Prices


class Spark(NamedTuple):
    """Which Spark the command line asks for."""

    master: str | None
    settings: dict[str, str]

    def session(self, report: Report) -> AbstractContextManager[SparkSession]:
        """That Spark, for the time of the block; `report` is called with the progress of its
        stages.
        """
        from tiering.spark.session import session

        return session(master=self.master, settings=self.settings, progress=report)

    def executor(self) -> AbstractContextManager[Executor]:
        """That Spark as the executor of a worker, for the time of the block."""
        from tiering.spark.jobs.executor import executor

        return executor(self.master, self.settings)


spark_options: Option = one_argument(
    "spark",
    lambda master, conf: Spark(master, dict(conf)),
    conf=click.option("--conf", "conf", type=Setting(), multiple=True,
                      help="A setting of Spark, such as spark.driver.memory=4g."),
    master=click.option("--master", metavar="URL",
                        help="Which Spark; default: that of spark-submit, or local[*]."),
)  # fmt: skip
"""The options `--master` and `--conf`, as the argument `spark`."""


def source_options(access: Access) -> dict[str, str]:
    """The options of the Spark source for the places and keys on the command line."""
    options = {f"place.{name}": value for name, value in access.options.items()}
    if access.keys_file is not None:
        options["key_file"] = str(access.keys_file.absolute())
    return options


class Moment(click.ParamType[int]):
    """A day or a moment in ISO 8601, UTC if it does not say; in ms since the epoch."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType`."""
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not like 2026-11-21 or 2026-11-21T18:00", param, ctx)
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1000)


class ViewSettings(NamedTuple):
    """The settings of the views: how archives are read, prices, and the time that ages count back
    from; None: now.
    """

    options: dict[str, str]
    prices: Prices
    now_ms: int | None


def _view_settings(
    access: Access, storage: StoragePrices, policy_file: Path | None, skip_damaged: bool,
    now_ms: int | None,
) -> ViewSettings:  # fmt: skip
    from tiering.policy.policy import Prices

    prices = Prices() if policy_file is None else read_policy(policy_file).prices
    options = source_options(access) | ({"damaged": "skip"} if skip_damaged else {})
    return ViewSettings(options, storage.of(prices), now_ms)


view_options: Option = one_argument(
    "views",
    _view_settings,
    now_ms=click.option("--as-of", "now_ms", type=Moment(),
                        help="The time that ages count back from; default: now."),
    skip_damaged=click.option("--skip-damaged", is_flag=True,
                              help="Leave out what can't be read, and log it, instead of failing."),
    policy_file=policy_option_at_need,
    storage=storage_prices,
    access=access_options,
)  # fmt: skip
"""The options that views have, as the argument `views`."""
