"""Java programs of tests, compiled by Maven with what they need."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def class_path(program: Path, folder: Path) -> str:
    """The class path of a program, compiled in a new folder; the test is left out where Maven or
    Java is not there, or Maven Central is out of reach.
    """
    if not (shutil.which("mvn") and shutil.which("java")):
        pytest.skip("there is no Maven, or no Java")
    shutil.copytree(program, folder)
    goals = ("compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib")
    made = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), *goals], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("Maven can't bring the client")
    return f"{folder}/target/classes:{folder}/target/lib/*"


def java(classes: str, home: Path, *words: str) -> list[str]:
    """Runs a program; the lines that it prints."""
    command = ["java", f"-Duser.home={home}", "-cp", classes, *words]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()
