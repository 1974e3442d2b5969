"""The core is built with the compiler that there is; without one the errors say what to do."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]


def run(code: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code with the backend on its path, and no compiler but those of `variables`."""
    if Path(shlex.split(sysconfig.get_config_var("CC") or "cc")[0]).is_absolute():
        pytest.skip("this Python finds its compiler without the PATH")
    others = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**others, "PYTHONPATH": str(ROOT / "build_backend"), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


REQUIRES: Final = "import backend; print(backend._package())"


def test_a_package_with_a_compiler_is_required_where_there_is_none(tmp_path: Path) -> None:
    assert "ziglang" in run(REQUIRES, ROOT, PATH=str(tmp_path)).stdout


def test_no_compiler_is_required_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "clang").write_text("#!/bin/sh\n")
    (tmp_path / "clang").chmod(0o755)
    assert run(REQUIRES, ROOT, PATH=str(tmp_path)).stdout == "[]\n"
    chosen = "import backend, os; backend._choose(); print(os.environ['CC'])"
    assert run(chosen, ROOT, PATH=str(tmp_path)).stdout == "clang\n"
    assert run(REQUIRES, ROOT, PATH="", CC="my-cc").stdout == "[]\n"


def test_a_build_without_any_compiler_says_what_to_install(tmp_path: Path) -> None:
    without = "import sys; sys.modules['ziglang'] = None; import backend; backend._choose()"
    ended = run(without, ROOT, PATH=str(tmp_path))
    assert ended.returncode != 0
    assert "there is no C compiler. Install one" in ended.stderr


def test_an_import_of_a_core_that_was_not_compiled_says_what_to_do(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "kvstore", tmp_path / "kvstore", ignore=ignored)
    ended = run("import kvstore", tmp_path)
    assert ended.returncode != 0
    assert "ImportError: kvstore.core is not compiled" in ended.stderr
    assert "make setup" in ended.stderr
