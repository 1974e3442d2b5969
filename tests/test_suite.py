"""The suite's two halves, its folders, and its one way into the inside of a store."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parent.parent
INSIDE = ROOT / "tests" / "support" / "inside.py"
BESIDE_ROOMS = {"crash", "data", "mutants", "support", "tiering"}
"""The folders of tests that are no room's."""


def test_all_that_make_test_leaves_out_is_there() -> None:
    assert [name for name in LONG if not (ROOT / name).exists()] == []


def test_make_test_all_runs_exactly_the_tests_that_make_test_leaves_out() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert makefile.count('-m "not long"') == 1
    assert makefile.count("-m long") == 1
    assert "test-all: test" in makefile


def private(tree: ast.AST, owners: frozenset[str] = frozenset()) -> Iterator[str]:
    """The private attributes that a module uses of others than itself and these owners."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in owners and not node.attr.startswith("__"):
                yield node.attr


def test_only_one_module_of_tests_knows_what_a_store_calls_its_parts() -> None:
    parts = set(private(ast.parse(INSIDE.read_text(encoding="utf-8"))))
    assert {"_engine", "_begin_pop"} <= parts
    own = frozenset({"self", "cls"})
    reaching = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        if path != INSIDE
        for name in private(ast.parse(path.read_text(encoding="utf-8")), own)
        if name in parts
    }
    assert reaching == set(), "take what tests/support/inside.py gives"


def test_a_folder_of_tests_is_called_as_the_room_it_tests() -> None:
    for tests, package in (("tests", "kvstore"), ("tests/tiering", "tiering")):
        folders = {path.parent.name for path in (ROOT / tests).glob("*/test_*.py")}
        rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders - BESIDE_ROOMS <= rooms
