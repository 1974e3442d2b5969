"""Freed memory goes back to the system, as far as a process does not keep it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_KEPT_OF = """
import re, sys
from pathlib import Path
from kvstore.process.freed_memory import keep_freed

def anonymous():
    return int(re.search(r"RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

before = anonymous()
if sys.argv[1] == "say":
    keep_freed(1 << 20, 1 << 20)
bytes(30 << 20)
pieces = [b"x" * (600 << 10) for _ in range(80)]
pieces.clear()
print((anonymous() - before) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system says how much a process has")
def test_freed_pieces_go_back_where_by_themselves_they_would_be_kept() -> None:
    kept = [
        int(
            subprocess.run(
                [sys.executable, "-c", _KEPT_OF, how], capture_output=True, check=True
            ).stdout
        )
        for how in ("say", "leave")
    ]
    assert kept[0] < 4
    assert kept[1] > 40, "so the library keeps them, if it is not told"


_GIVEN_BACK = """
import re, sys
from pathlib import Path
import kvstore
from kvstore.process.freed_memory import give_back_freed

def anonymous():
    return int(re.search(r"RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

own = kvstore.StoreConfig(checkpoint_bytes=1 << 30, checkpoint_interval=3600)
with kvstore.open(sys.argv[1], config=own) as store:
    store.create_topic("t", 8)
    for n in range(200):
        batch = [kvstore.Message("t", b"", queue=i % 8, keys=[f"{n}-{i}"]) for i in range(500)]
        store.put_batch(batch)
    del batch
    before = anonymous()
    store.checkpoint()
    after = anonymous()
    give_back_freed()
    print(before - after, after - anonymous())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system says how much a process has")
def test_a_large_checkpoint_leaves_no_freed_memory_behind(tmp_path: Path) -> None:
    code = [sys.executable, "-c", _GIVEN_BACK, str(tmp_path / "store")]
    printed = subprocess.run(code, capture_output=True, check=True).stdout
    fallen, left = map(int, printed.split())
    assert fallen > 1024, "KiB: the tail is gone"
    assert left < 1024
