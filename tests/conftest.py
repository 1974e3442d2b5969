"""What holds for all tests, and for the processes that they start."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from kvstore.files import LocalFiles
from tests.support.disk import half_full
from tests.support.pools import quick_pools

# Else a failure there does not say what was found.
pytest.register_assert_rewrite("tests.support.contents")
half_full(LocalFiles)
quick_pools()
# A shell starts what runs in the background deaf to it; tests interrupt what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What a test starts imports kvmq in half the time when Python keeps what it compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
_site = str(Path(__file__).parent / "support" / "site")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_site, os.environ.get("PYTHONPATH"))))

LONG: Final = (
    "tests/cli/test_bench.py",
    "tests/cli/test_work.py",
    "tests/consume/test_pop_model.py",
    "tests/consume/test_smallest_limits.py",
    "tests/crash/test_every_operation.py",
    "tests/crash/test_index_damage.py",
    "tests/crash/test_kill.py",
    "tests/crash/test_pop_kill.py",
    "tests/crash/test_power_cut.py",
    "tests/store/test_states.py",
    "tests/tiering/erase/test_kill.py",
    "tests/tiering/spark",
    "tests/tiering/store/test_same_answers.py",
    "tests/tiering/worker/test_every_operation.py",
    "tests/tiering/worker/test_kill.py",
    "tests/tiering/worker/test_threads.py",
)
"""Long models, crash campaigns and Spark, which `make test` leaves to `make test-all`."""


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Marks the tests of `LONG`."""
    long = tuple(config.rootpath / name for name in LONG)
    for item in items:
        if any(item.path.is_relative_to(path) for path in long):
            item.add_marker(pytest.mark.long)
