"""The lists of small faults fit the source, so that `make mutants` can try each of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.mutants.faults import ROOT, Fault, problems, put_in, read_all

EXPLAINED = ROOT / "tests" / "mutants.md"


def _all_faults() -> list[Fault]:
    return [fault for faults in read_all().values() for fault in faults]


def test_each_fault_of_the_lists_can_be_put_into_the_source() -> None:
    assert [problem for fault in _all_faults() for problem in problems(fault)] == []


def test_each_fault_has_a_name_of_its_own() -> None:
    counts = Counter(fault.name for fault in _all_faults())
    assert [name for name, count in counts.items() if count > 1] == []


def test_each_fault_that_no_test_notices_is_explained_to_readers() -> None:
    text = EXPLAINED.read_text(encoding="utf-8")
    unnoticed = [fault.name for fault in _all_faults() if fault.unnoticed]
    assert [name for name in unnoticed if name not in text] == []


def test_a_fault_that_leaves_no_python_or_whose_text_is_gone_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\ny = 2\n", encoding="utf-8")
    (tmp_path / "t.py").touch()

    def found(was: str, now: str = "") -> list[str]:
        return problems(Fault("f", "a.py", was, now, ("t.py",)), tmp_path)

    assert "0 times" in found("z")[0]
    assert "2 times" in found("x = 1")[0]
    assert found("y = 2") == []
    assert "not Python" in found("y = 2", "y =")[0]
    assert put_in(Fault("f", "a.py", "y = 2", "y = 3", ("t.py",)), tmp_path).endswith("y = 2\n")
    assert (tmp_path / "a.py").read_text(encoding="utf-8").endswith("y = 3\n")
