"""What holds for all tests, and for the processes that they start."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.disk import half_full

half_full()
_site = str(Path(__file__).parent / "support" / "site")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_site, os.environ.get("PYTHONPATH"))))
