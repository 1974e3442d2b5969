"""The suite's two halves, its folders, and its one way into the inside of the product."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parent.parent
INSIDE = {f"tests/support/{name}.py" for name in ("inside", "inside_pops", "inside_tiering")}
"""The modules that know how the product calls its parts."""
BESIDE_ROOMS = {"crash", "data", "examples", "kombu_kvmq", "mutants", "support", "tiering"}
"""The folders of tests that are no room's."""


def test_all_that_make_test_leaves_out_is_there() -> None:
    assert [name for name in LONG if not (ROOT / name).exists()] == []


def test_make_test_all_runs_exactly_the_tests_that_make_test_leaves_out() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert makefile.count('-m "not long"') == 1
    assert makefile.count("-m long") == 1
    assert "test-all: test" in makefile


OWN = frozenset({"self", "cls"})
PYTHONS = frozenset({"os._exit", "sys._current_frames", "sys._getframe"})
NAMED_TUPLES = frozenset({"_asdict", "_fields", "_fields_", "_make", "_replace"})
"""Public, though they begin as private names do; `_fields_` is of ctypes."""


def is_private(name: str) -> bool:
    """Whether a name is private to an object or a module; constants, which tests lower, are not."""
    dunder = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not dunder and not name.isupper()


def private(tree: ast.AST) -> Iterator[str]:
    """The private names that a module takes of others, also by the name as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr not in NAMED_TUPLES:
            is_own = isinstance(node.value, ast.Name) and node.value.id in OWN
            if not is_own and node.attr.startswith("_") and not node.attr.startswith("__"):
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
            names = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield from (n for n in map(str, names) if is_private(n.rpartition(".")[2]))


def test_only_the_seams_know_what_the_product_calls_its_parts() -> None:
    reaching = {
        path.relative_to(ROOT).as_posix(): found
        for path in (ROOT / "tests").rglob("*.py")
        if (found := set(private(ast.parse(path.read_text(encoding="utf-8")))) - PYTHONS)
    }
    assert reaching.keys() >= INSIDE
    assert {at: found for at, found in reaching.items() if at not in INSIDE} == {}, (
        "take what tests/support/inside.py and those beside it give"
    )


def test_a_folder_of_tests_is_called_as_the_room_it_tests() -> None:
    for tests, package in (("tests", "kvstore"), ("tests/tiering", "tiering")):
        folders = {path.parent.name for path in (ROOT / tests).glob("*/test_*.py")}
        rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders - BESIDE_ROOMS <= rooms
