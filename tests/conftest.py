"""What holds for all tests, and for the processes that they start."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.disk import half_full
from tests.support.pools import quick_pools

# Else a failure there does not say what was found.
pytest.register_assert_rewrite("tests.support.contents")
half_full()
quick_pools()
# A shell starts what runs in the background deaf to it; tests interrupt what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
_site = str(Path(__file__).parent / "support" / "site")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_site, os.environ.get("PYTHONPATH"))))
