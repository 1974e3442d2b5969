"""The README's example runs and prints what it says; what the README names is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
import pytest

from kvstore import PutStatus
from kvstore.cli import kvmq

ROOT: Final = Path(__file__).resolve().parent.parent
LINES_MAX: Final = 20


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def block(text: str, language: str) -> str:
    """The first fenced block of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"the README has no {language} block"
    return found[1]


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_example_has_at_most_twenty_lines(readme: str) -> None:
    assert len(block(readme, "python").splitlines()) <= LINES_MAX


def test_the_example_prints_what_the_readme_says_it_prints(readme: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", block(readme, "python")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.stderr == ""
    assert ran.returncode == 0
    assert ran.stdout == block(readme, "text")


def test_every_verb_of_the_command_is_shown_and_no_other(readme: str) -> None:
    screen = section(readme, "The command line")
    shown = re.findall(r"^kvmq ([a-z-]+)", screen, re.MULTILINE)
    assert set(shown) == set(kvmq.list_commands(click.Context(kvmq)))


def test_every_status_of_a_put_is_promised_something(readme: str) -> None:
    promises = section(readme, "What it promises about durability")
    for status in PutStatus:
        assert f"| `{status.value}` |" in promises


def test_the_figures_stand_between_their_markers(readme: str) -> None:
    figures = section(readme, "Figures")
    assert figures.count("<!-- figures:begin -->") == figures.count("<!-- figures:end -->") == 1
    table = figures.split("<!-- figures:begin -->")[1].split("<!-- figures:end -->")[0]
    assert table.strip().startswith("|")
    assert "make bench" in figures


def test_the_make_targets_named_in_the_readme_exist(readme: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^    |`)make ([a-z]+)", readme, re.MULTILINE)
    assert {"demo", "test", "bench", "check"} <= set(named) <= targets
