"""A child process that writes until it is killed, and the number of messages that it acknowledged.

The idea: the child puts with `flush="sync"`, and prints how many messages are on the disk by then.
Whatever it printed must be there when the store is opened again.

Invariant: the child ends before `write_and_kill` does.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from kvstore.clock import SystemClock

_LIFE_S: Final = 1.0
"""The child writes for so long before it is killed."""
_WRITER: Final = """
import sys, kvstore
with kvstore.open(sys.argv[1], kvstore.StoreConfig(flush="sync")) as store:
    done = 0
    while True:
        messages = [kvstore.Message(sys.argv[2], b"%012d" % (done + i), queue=0) for i in range(32)]
        done = store.put_batch(messages)[-1].offset + 1
        print(done, flush=True)
"""


def write_and_kill(folder: Path, topic: str) -> int:
    """How many messages the child acknowledged before it was killed."""
    command = [sys.executable, "-c", _WRITER, str(folder), topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            first = child.stdout.readline()
            SystemClock().sleep(_LIFE_S)
        finally:
            child.kill()
        # The kill may cut the last line.
        whole = [int(line) for line in (first, *child.stdout) if line.endswith("\n")]
    return max(whole, default=0)
