"""The wheel for this processor runs in an empty environment; each has files for its own alone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from build_backend import wheels

ROOT: Final = Path(__file__).resolve().parents[2]
OURS: Final = "x86_64"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("ziglang", reason="make test-all, or make wheel, installs it")
    into = tmp_path_factory.mktemp("dist")
    return {machine: wheels.build(machine, into) for machine in wheels.MACHINES}


def test_a_wheel_has_compiled_files_for_its_own_processor_and_old_systems(
    built: dict[str, Path],
) -> None:
    for machine, wheel in built.items():
        assert wheel.name.endswith(f"-manylinux_2_17_{machine}.whl")
        assert wheels.check(wheel, machine) == []
        with zipfile.ZipFile(wheel) as archive:
            compiled = [name for name in archive.namelist() if name.endswith(".so")]
            assert len(compiled) == len(list((ROOT / "kvstore/core").rglob("*.pyx")))
            for name in compiled:
                assert archive.read(name)[18] == {"x86_64": 62, "aarch64": 183}[machine]
                assert f"-{machine}-linux-gnu.so" in name


def test_a_wheel_of_another_processor_is_found_out(built: dict[str, Path]) -> None:
    assert wheels.check(built["aarch64"], "x86_64") != []


def test_a_file_that_needs_a_newer_system_is_found_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "kvmq.whl", "w") as archive:
        for path in (ROOT / "kvstore/core").rglob("*.pyx"):
            stem = path.relative_to(ROOT).with_suffix("")
            name = f"{stem}.cpython-311-x86_64-linux-gnu.so"
            archive.writestr(name, b"\x7fELF" + bytes(14) + b"\x3e\0GLIBC_2.2.5\0GLIBC_2.28\0")
    faults = wheels.check(tmp_path / "kvmq.whl", "x86_64")
    assert [fault for fault in faults if fault.endswith("needs glibc 2.28")]


@pytest.mark.skipif(platform.machine() != OURS, reason="the wheel is for another processor")
def test_the_demo_runs_from_a_wheel_in_an_empty_environment(
    built: dict[str, Path], tmp_path: Path
) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        ran = subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    run(sys.executable, "-m", "venv", "empty")
    pip = (tmp_path / "empty/bin/python", "-m", "pip", "install", "--quiet")
    run(*pip, "--require-hashes", "-r", ROOT / "requirements/runtime.txt")
    run(*pip, "--no-deps", built[OURS])
    assert str(ROOT) not in run(
        tmp_path / "empty/bin/python",
        "-c",
        "import kvstore.core.columns.bits as b; print(b.__file__)",
    )
    run(tmp_path / "empty/bin/kvmq", "demo")
