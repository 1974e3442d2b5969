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


def java(classes: str, home: Path, *words: str, **properties: str) -> list[str]:
    """Runs a program, with properties of Java's; the lines that it prints."""
    with started(classes, home, *words, **properties) as running:
        try:
            said, errors = running.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
    assert running.returncode == 0, errors
    return said.splitlines()


def started(classes: str, home: Path, *words: str, **properties: str) -> subprocess.Popen[str]:
    """The process of a program that runs."""
    given = {"user.home": str(home), **properties}
    named = [f"-D{name}={value}" for name, value in given.items()]
    return subprocess.Popen(
        ["java", "-Xmx512m", *named, "-cp", classes, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(home)},
    )
