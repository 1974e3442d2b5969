"""Every invariant has tests that hold it, and tests/README.md names them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def numbered(text: str) -> list[int]:
    """The numbers of a list, in its order."""
    return [int(number) for number in re.findall(r"(?m)^(\d+)\. ", text)]


def faults(invariants: str, table: str) -> list[str]:
    """Invariants without a row, rows of no invariant, of another title or without tests, and tests
    that are not there.
    """
    titles = dict(re.findall(r"(?m)^(\d+)\. \*\*([^*]+?)\.?\*\*", invariants))
    rows = {}
    found = []
    for number, title, tests in re.findall(r"(?m)^\| (\d+)\. ([^|]+) \| (.*) \|$", table):
        rows[number] = tests
        if title != titles.get(number, title):
            found.append(f"row {number} has the title {title}")
    due = {str(number) for number in numbered(invariants)}
    found += [f"invariant {number} has no row" for number in sorted(due - rows.keys())]
    found += [f"row {number} has no invariant" for number in sorted(rows.keys() - due)]
    for number, tests in rows.items():
        named = TEST.findall(tests)
        if not named or len(named) != tests.count("`") // 2:
            found.append(f"row {number} names something else than tests")
        found += [f"{path}::{name}" for path, name in named if not is_there(path, name)]
    return found


def is_there(path: str, name: str) -> bool:
    """Whether the file is there, and has a test or a case of tests of the name."""
    if not (ROOT / path).is_file():
        return False
    names = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return not name or (name in names and name.startswith(("test_", "Test")))


def test_each_invariant_has_tests_that_hold_it() -> None:
    invariants = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    table = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    assert numbered(invariants) == list(range(1, len(numbered(invariants)) + 1))
    assert len(re.findall(r"(?m)^\d+\. \*\*", invariants)) == len(numbered(invariants))
    assert faults(invariants, table) == []


def test_a_gap_in_the_table_is_found() -> None:
    here = "tests/test_invariants.py"
    table = f"| 1. One | `{here}::numbered`, `{here}::lost` |\n| 3. Three | `tests/x.py` |\n"
    assert faults("1. **One.** It is.\n2. **Two**\n3. **Tree**: tall.\n", table) == [
        "row 3 has the title Three",
        "invariant 2 has no row",
        f"{here}::numbered",
        f"{here}::lost",
        "tests/x.py::",
    ]
    assert faults("", "| 1. One | by hand |\n") == [
        "row 1 has no invariant",
        "row 1 names something else than tests",
    ]
