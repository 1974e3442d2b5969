"""A bench ends when its server does not, and so do all processes that it started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from bench.isolated import contained
from bench.served import ending
from tests.support.waiting import until

STUBBORN: Final = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def stubborn() -> subprocess.Popen[str]:
    """A process that SIGTERM does not end."""
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def left() -> int:
    """A scenario that starts a process and leaves it."""
    return stubborn().pid


def failed() -> None:
    """A scenario whose server does not end."""
    with ending(stubborn(), 0.1):
        pass


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or nobody asked yet how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_process_that_does_not_end_is_killed_and_reported() -> None:
    process = stubborn()
    with pytest.raises(RuntimeError, match="SIGTERM did not end"), ending(process, 0.1):
        pass
    assert process.returncode is not None


def test_a_process_ends_though_the_work_it_is_for_fails() -> None:
    process = subprocess.Popen(["sleep", "600"])
    with pytest.raises(ValueError, match="the work"), ending(process):
        raise ValueError("the work")
    assert process.returncode is not None


def test_a_scenario_whose_server_does_not_end_fails() -> None:
    with pytest.raises(RuntimeError, match="SIGTERM did not end"):
        contained(failed)


def test_what_a_scenario_leaves_running_ends_with_it() -> None:
    pid = contained(left)
    until(lambda: has_ended(pid))
