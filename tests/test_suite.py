"""The suite's two halves: what `make test` leaves out is there, and run by `make test-all`."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parent.parent


def test_all_that_make_test_leaves_out_is_there() -> None:
    assert [name for name in LONG if not (ROOT / name).exists()] == []


def test_make_test_all_runs_exactly_the_tests_that_make_test_leaves_out() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert makefile.count('-m "not long"') == 1
    assert makefile.count("-m long") == 1
    assert "test-all: test" in makefile
