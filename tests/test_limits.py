"""Each limit of what is kept in memory is lowered by a test, so that its faults are seen."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.limits import LET_OUT, LIMITS, LIMITS_OF_TIERING, NO_LIMITS_OF_MEMORY

ROOT: Final = Path(__file__).resolve().parent.parent
NAMED_SO: Final = re.compile("(MAX|KEPT|BYTES|REMEMBERED)$")


@pytest.mark.parametrize("package", ["kvstore", "tiering"])
def test_every_limit_of_the_source_is_lowered_by_a_test(package: str) -> None:
    """A limit is a number with which a `len`, or a count of kept things, is compared."""
    tried = {name for limit in LIMITS for name in limit.names} | LET_OUT.keys()
    listed = tried if package == "kvstore" else LIMITS_OF_TIERING
    known = {name.rpartition(".")[2] for name in listed} | NO_LIMITS_OF_MEMORY
    missing = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            text = ast.unparse(node.left)
            names = {
                n.id
                for c in node.comparators
                for n in ast.walk(c)
                if isinstance(n, ast.Name) and NAMED_SO.search(n.id)
            }
            if any(part in text for part in ("len(", "_kept", "_bytes", "self._")):
                missing |= {f"{path.name}: {name}" for name in names - known}
    assert not missing, "list it in tests/support/limits.py with the test that lowers it"


LOWERED: Final = {
    **{f"kvstore.{name}": told for name, told in LET_OUT.items()},
    **{f"tiering.{name}": path for name, path in LIMITS_OF_TIERING.items()},
}


@pytest.mark.parametrize("name", LOWERED)
def test_a_limit_that_the_models_do_not_reach_is_lowered_by_the_test_that_is_named(
    name: str,
) -> None:
    path = ROOT / LOWERED[name].rpartition(" ")[2]
    module, _, constant = name.rpartition(".")
    assert hasattr(importlib.import_module(module), constant)
    assert constant in path.read_text(encoding="utf-8")
