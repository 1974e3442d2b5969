"""The options that verbs `spark ...` share: which Spark runs them, its settings; for `sql` and
`report` also the source of their views, and the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvstore.cli.terminal.options import (
    Access,
    Setting,
    access_options,
    policy_option_at_need,
    read_policy,
)
from kvstore.cli.terminal.output import Report
from kvstore.cli.tier.plan import StoragePrices, storage_prices

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiering.executor.pool import Executor
    from tiering.policy.policy import Prices


class Engine(NamedTuple):
    """Which Spark the command line asks for."""

    master: str | None
    settings: dict[str, str]

    @contextmanager
    def session(self, report: Report | None = None) -> Iterator[SparkSession]:
        """That Spark, for the time of the block; `report` is called with the progress of its
        stages.
        """
        from tiering.spark.session import session

        with session(master=self.master, settings=self.settings, progress=report) as spark:
            yield spark

    def executor(self) -> AbstractContextManager[Executor]:
        """That Spark as the executor of a worker, for the time of the block."""
        from tiering.spark.jobs.executor import executor

        return executor(self.master, self.settings)


def engine_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options `--master` and `--conf`, as the argument `engine`."""

    @click.option("--conf", "conf", type=Setting(), multiple=True,
                  help="A setting of Spark, such as spark.driver.memory=4g.")  # fmt: skip
    @click.option("--master", metavar="URL",
                  help="Which Spark; default: that of spark-submit, or local[*].")  # fmt: skip
    @functools.wraps(verb)
    def with_engine(
        *args: Any, master: str | None, conf: tuple[tuple[str, str], ...], **options: Any
    ) -> Any:
        return verb(*args, engine=Engine(master, dict(conf)), **options)

    return with_engine


def options_of(access: Access) -> dict[str, str]:
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
