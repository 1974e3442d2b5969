"""A session: what Spark takes is found or told to be missing; what its JVM is told; who ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tiering.errors import ExtraMissing, SparkUnsuitable
from tiering.spark import session
from tiering.spark.session import JOBS, SCANS, error_line, java_home


def java(home: Path, said: str) -> Path:
    """A Java that is only asked for its version."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_goes_before_the_path_and_that_before_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of the usual places the oldest that is new enough is taken."""
    mine = java(tmp_path / "mine", "21.0.2")
    on_path = java(tmp_path / "on-path", "17.0.1")
    usual = tmp_path / "usual"
    for name, said in (("a", "25"), ("b", "17.0.9"), ("c", "1.8.0_400")):
        java(usual / name, said)
    monkeypatch.setattr(session, "_HOMES", (str(usual),))
    path = str(on_path / "bin")
    assert session.java_home({"JAVA_HOME": str(mine), "PATH": path}) == mine
    assert session.java_home({"PATH": path}) == on_path
    assert session.java_home({"PATH": ""}) == usual / "b"


def test_without_java_it_is_said_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_HOMES", (str(tmp_path),))
    with pytest.raises(SparkUnsuitable, match=r"Java 17 or newer: no Java was found.*Install"):
        session.java_home({"PATH": ""})
    old = java(tmp_path / "old", "11.0.20")
    with pytest.raises(SparkUnsuitable, match="old is Java 11"):
        session.java_home({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(SparkUnsuitable, match="no bin/java"):
        session.java_home({"JAVA_HOME": str(tmp_path / "none"), "PATH": ""})


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    session.check_packages()
    found = {"pyspark": "4.1.3", "pyarrow": "26.0.1"}
    monkeypatch.setattr(session, "version", found.__getitem__)
    with pytest.raises(SparkUnsuitable, match=r"pyspark is 4\.1\.3; this takes 4\.2"):
        session.check_packages()

    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(session, "version", none)
    with pytest.raises(ExtraMissing, match=r"kvmq\[spark\]") as told:
        session.check_packages()
    assert told.value.extra == "spark"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[TABLE] There is no table.\n\tat org.apache", "[TABLE] There is no table."),
        (
            "Job aborted.\n  File x\nkvstore.errors.ArchiveDamaged: block 3 is damaged\n\n\tat org",
            "block 3 is damaged (ArchiveDamaged)",
        ),
        (
            "An error occurred while calling o1.x.\n: java.io.IOException: no room\n\tat y",
            "no room (IOException)",
        ),
    ],
)
def test_of_what_spark_says_the_line_that_matters_is_kept(text: str, said: str) -> None:
    assert error_line(text) == said


SAYS = """
import json, os
from tiering.spark.session import SCANS, session

with session(master="local[1]", settings={"spark.driver.extraJavaOptions": "-Duser=1"}) as spark:
    system = spark._jvm.java.lang.System
    names = ("site", "user", "variable", *(one[2:].split("=")[0] for one in SCANS))
    print(json.dumps([{name: system.getProperty(name) for name in names}, dict(os.environ)]))
"""


@pytest.mark.parametrize("options", [JOBS, SCANS])
@pytest.mark.parametrize("collector", ["G1", "Parallel", "Serial"])
def test_it_starts_whatever_garbage_collector_the_machine_asks_for(
    collector: str, options: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [java_home() / "bin" / "java", *options, "-version"],
        env={**os.environ, "JAVA_TOOL_OPTIONS": f"-XX:+Use{collector}GC"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("variable", [None, "-Dvariable=2"])
def test_what_a_site_and_a_user_tell_each_jvm_holds_beside_it_and_before_it(
    tmp_path: Path, variable: str | None
) -> None:
    told = "spark.driver.defaultJavaOptions -Dsite=3 -Darrow.enable_null_check_for_get=true\n"
    (tmp_path / "spark-defaults.conf").write_text(told)
    given = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    given.pop("SPARK_SUBMIT_OPTS", None)
    if variable is not None:
        given["SPARK_SUBMIT_OPTS"] = variable
    done = subprocess.run(
        [sys.executable, "-c", SAYS], env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    has, left = json.loads(done.stdout)
    assert has == {
        "site": "3",
        "user": "1",
        "variable": None if variable is None else "2",
        "arrow.enable_unsafe_memory_access": "true",
        "arrow.enable_null_check_for_get": "true",
    }
    assert left.get("SPARK_SUBMIT_OPTS") == variable


TWO = """
import os, threading
from tiering.spark.session import JOBS, SCANS, session

both = threading.Barrier(2, timeout=120)

def start(jvm):
    both.wait()
    with session(master="local[1]", jvm=jvm) as spark:
        spark.range(3).count()
        both.wait()

threads = [threading.Thread(target=start, args=(jvm,)) for jvm in (JOBS, SCANS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert os.environ.get("SPARK_SUBMIT_OPTS") is None, os.environ["SPARK_SUBMIT_OPTS"]
os.write(2, b"still here")
"""


SHARED = """
import threading
from pyspark.sql import SparkSession
from tiering.spark.session import session

def beside(first_ends):
    \"\"\"A block in another thread, which ends before this one's, or after it.\"\"\"
    entered, end = threading.Event(), threading.Event()

    def use():
        with session() as spark:
            entered.set()
            end.wait()
            counts.append(spark.range(3).count())

    thread = threading.Thread(target=use)
    with session(master="local[1]") as spark:
        thread.start()
        entered.wait()
        if not first_ends:
            end.set()
            thread.join()
        counts.append(spark.range(3).count())
    end.set()
    thread.join()

counts = []
for first_ends in (True, False):
    beside(first_ends)
    print(len(counts), SparkSession.getActiveSession())
own = SparkSession.builder.master("local[1]").getOrCreate()
for first_ends in (True, False):
    beside(first_ends)
    print(len(counts), own.range(3).count())
with session() as spark:
    spark.stop()
print(len(counts), SparkSession.getActiveSession())
"""


def test_a_session_is_stopped_by_the_last_of_its_blocks_and_never_if_it_was_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 None", "4 None", "6 3", "8 3", "8 None"]


def test_two_that_start_at_once_leave_what_a_jvm_is_told_and_where_errors_go_as_they_were() -> None:
    given = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    done = subprocess.run(
        [sys.executable, "-c", TWO], env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("still here")
