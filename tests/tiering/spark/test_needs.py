"""What Spark takes: Java found, or told to be missing or too old, before Spark is asked."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from tiering.errors import ExtraMissing, SparkUnsuitable
from tiering.spark import session
from tiering.spark.session import error_line


def java(home: Path, said: str, *, by_release: bool = True) -> Path:
    """A Java that is only asked for its version."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\"' >&2\n")
    program.chmod(0o755)
    if by_release:
        (home / "release").write_text(f'JAVA_VERSION="{said}"\n')
    return home


def test_java_home_goes_before_everything(tmp_path: Path) -> None:
    home = java(tmp_path / "mine", "21.0.2")
    assert session.java_home({"JAVA_HOME": str(home), "PATH": ""}) == home


def test_a_java_on_the_path_is_found(tmp_path: Path) -> None:
    home = java(tmp_path / "on-path", "17.0.1", by_release=False)
    assert session.java_home({"PATH": str(home / "bin")}) == home


def test_where_java_usually_is_the_oldest_that_is_new_enough_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, said in (("a", "25"), ("b", "17.0.9"), ("c", "1.8.0_400")):
        java(tmp_path / name, said)
    monkeypatch.setattr(session, "_HOMES", (str(tmp_path),))
    assert session.java_home({"PATH": ""}) == tmp_path / "b"


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
