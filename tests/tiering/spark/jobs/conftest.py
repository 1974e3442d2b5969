"""A store to make copies of, and who does the work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.tiering.spark.jobs.twins import make_store
from tiering.spark.jobs.executor import SparkExecutor


@pytest.fixture
def executor(spark: SparkSession) -> Iterator[SparkExecutor]:
    one = SparkExecutor(spark)
    yield one
    one.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store's folder, and the time at which all of it is due."""
    folder = tmp_path_factory.mktemp("jobs") / "store"
    return folder, make_store(folder)
