"""The options that verbs `spark ...` share: which Spark runs them, and its settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvstore.cli.terminal.access import Access, Setting
from kvstore.cli.terminal.output import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiering.executor.pool import Executor


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
