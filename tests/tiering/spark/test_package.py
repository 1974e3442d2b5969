"""`kvmq spark package`: kvmq in a zip file that Python runs from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from kvstore.cli.spark.export import package


def test_what_is_packed_is_imported_from_the_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "kvmq.zip"
    done = CliRunner().invoke(package, [str(target), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["bytes"] == target.stat().st_size
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import kvstore, pyspark_kvmq\n"
        "print(kvstore.__file__, pyspark_kvmq.DefaultSource.name())"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", program, str(target)],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert run.stdout.split() == [str(target / "kvstore" / "__init__.py"), "kvmq"]


def test_the_same_source_is_packed_to_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for file in files:
        CliRunner().invoke(package, [str(file)], catch_exceptions=False)
    assert files[0].read_bytes() == files[1].read_bytes()
