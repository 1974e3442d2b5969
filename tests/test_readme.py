"""The README fits a screen, its example prints the text below it, and all that it names is there.

The pages that hold the rest are tested here too: verbs, statuses of a put, figures, contents.
"""

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
DOCS: Final = ROOT / "docs"
EXAMPLE_LINES_MAX: Final = 20
README_LINES_MAX: Final = 90
PEERS: Final = ("RocketMQ", "Kafka", "NATS JetStream", "Redis Streams", "SQLite")


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def block(text: str, language: str) -> str:
    """The first fenced block of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"the README has no {language} block"
    return found[1]


def expected_output(text: str) -> str:
    """The text block that follows the example."""
    return block(text.partition("\nIt prints\n")[2], "text")


def section(text: str, title: str) -> str:
    """The text below a heading, up to the next one of its level."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_readme_is_one_screen(readme: str) -> None:
    assert len(readme.splitlines()) <= README_LINES_MAX


def test_the_example_has_at_most_twenty_lines(readme: str) -> None:
    assert len(block(readme, "python").splitlines()) <= EXAMPLE_LINES_MAX


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
    assert ran.stdout == expected_output(readme)


def test_every_verb_of_the_command_is_shown_and_no_other() -> None:
    shown = re.findall(r"^kvmq ([a-z-]+)", page("command.md"), re.MULTILINE)
    assert set(shown) == set(kvmq.list_commands(click.Context(kvmq)))


def test_every_status_of_a_put_is_promised_something() -> None:
    promises = section(page("promises.md"), "Durability")
    for status in PutStatus:
        assert f"| `{status.value}` |" in promises


def test_the_figures_stand_between_their_markers() -> None:
    figures = page("figures.md")
    assert figures.count("<!-- figures:begin -->") == figures.count("<!-- figures:end -->") == 1
    table = figures.split("<!-- figures:begin -->")[1].split("<!-- figures:end -->")[0]
    assert table.strip().startswith("|")
    assert "make bench" in figures


def test_the_make_targets_named_in_the_readme_exist(readme: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^    |`)make ([a-z-]+)", readme, re.MULTILINE)
    assert {"setup", "demo", "test", "test-all", "bench", "check"} <= set(named) <= targets


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_the_readme_says_how_many_minutes_the_tests_take(readme: str, target: str) -> None:
    sentence = readme.partition(f"`make {target}`")[2].partition(". ")[0]
    assert re.search(r"\d+ minutes", sentence)


def test_the_table_of_peers_has_a_cell_for_each_of_them_in_every_row(readme: str) -> None:
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    assert all(peer in rows[0] for peer in PEERS)
    assert {row.count("|") for row in rows} == {len(PEERS) + 3}


def test_the_rates_in_the_table_of_peers_are_measured_figures(readme: str) -> None:
    rates = next(line for line in readme.splitlines() if line.startswith("| put, batches of 32"))
    measured = page("figures.md") + page("benchmarks.md")
    for cell in rates.strip("|").split("|")[1:]:
        figures = re.findall(r"[\d,]+(?: msg)?/s|[\d.]+ times as fast", cell)
        assert figures or cell.strip() == "not measured"
        assert all(re.search(rf"\W{figure}", measured) for figure in figures)


def test_the_readme_names_the_distribution_and_the_packages_to_import(readme: str) -> None:
    [line] = [line for line in readme.splitlines() if "distribution" in line]
    for name in ("`kvmq`", "`kvstore`", "`tiering`"):
        assert name in line


def test_every_document_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"\]\(([^)#]+)", page("README.md")))
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md"} <= listed
    decisions = set(re.findall(r"\]\(([^)#]+)", page("decisions/README.md")))
    assert {path.name for path in (DOCS / "decisions").glob("0*.md")} == decisions


def test_each_decision_has_a_number_of_its_own_at_the_beginning_of_its_title() -> None:
    decisions = sorted((DOCS / "decisions").glob("0*.md"))
    numbers = [path.name.partition("-")[0] for path in decisions]
    assert numbers == [f"{n:04}" for n in range(1, len(numbers) + 1)]
    for number, path in zip(numbers, decisions, strict=True):
        assert path.read_text(encoding="utf-8").startswith(f"# {number}: ")
