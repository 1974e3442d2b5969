"""What the JVM of a Spark that only hands out steps is told."""

from __future__ import annotations

import os
import subprocess

import pytest

from tiering.spark.needs import java_home
from tiering.spark.session import JOBS


@pytest.mark.parametrize("collector", ["G1", "Parallel", "Serial"])
def test_it_starts_whatever_garbage_collector_the_machine_asks_for(collector: str) -> None:
    given = " ".join(value for name, value in JOBS.items() if name.endswith("JavaOptions"))
    assert given
    done = subprocess.run(
        [java_home() / "bin" / "java", *given.split(), "-version"],
        env={**os.environ, "JAVA_TOOL_OPTIONS": f"-XX:+Use{collector}GC"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_options_that_a_site_gives_each_jvm_are_left_to_it() -> None:
    assert "spark.driver.extraJavaOptions" not in JOBS
