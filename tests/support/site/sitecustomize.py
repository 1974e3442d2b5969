"""Python runs this first in the processes that tests start: their disks are half full as well."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
# Not every Python that a test starts has what kvmq needs.
with contextlib.suppress(ImportError):
    from tests.support.disk import half_full

    half_full()
