"""A store to make copies of, and who does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from tests.tiering.spark.jobs.twins import make_store
from tiering.spark.jobs.executor import SparkExecutor

T = TypeVar("T")


class Noting(SparkExecutor):
    """Keeps what its tasks were given."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self.given: list[tuple[Any, ...]] = []

    def run(self, check: Callable[[], None], work: Callable[..., T], *args: Any) -> T:
        self.given.append(args)
        return super().run(check, work, *args)


@pytest.fixture
def executor(spark: SparkSession) -> Iterator[Noting]:
    one = Noting(spark)
    yield one
    one.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store's folder, and the time at which every segment is due."""
    folder = tmp_path_factory.mktemp("jobs") / "store"
    return folder, make_store(folder)
