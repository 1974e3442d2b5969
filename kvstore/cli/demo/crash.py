"""Kills a writing child with SIGKILL, reopens the store, and counts what is there.

Invariant looked for: everything the child acknowledged is there, in order, once; what else is there
is what it was writing when it died. Nothing of the child survives the demo, however that ends.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import kvstore
from kvstore import Store, StoreConfig
from kvstore.cli.demo.steps import Step
from kvstore.cli.demo.writer import BATCH, numbered
from kvstore.clock import SystemClock

TOPIC: Final = "kvmq_demo_killed"
QUEUES: Final = 4
_LIFE: Final = 1.0
"""Seconds from the first acknowledgement to the kill."""
_PULL: Final = 32


def write_and_kill(folder: Path) -> tuple[Step, int]:
    """Let a child write for a while and kill it; returns how many messages it acknowledged."""
    step = Step("kill -9", unit="msg")
    command = [sys.executable, "-m", "kvstore.cli.demo.writer", str(folder), TOPIC, str(QUEUES)]
    clock = SystemClock()
    begin = clock.monotonic()
    acknowledged = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            acknowledged = int(child.stdout.readline() or 0)
            begin = clock.monotonic()
            while acknowledged and clock.monotonic() - begin < _LIFE:
                line = child.stdout.readline()
                if not line:
                    break
                acknowledged = int(line)
        finally:
            child.kill()
        # What it had acknowledged and we had not read yet counts too; its last line may be cut.
        for line in child.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
        complaint = child.stderr.read().strip()
    step.seconds = clock.monotonic() - begin
    step.count = acknowledged
    step.expect(acknowledged > 0, f"the writer did not write: {complaint or 'no message'}")
    step.shown = "while writing with flush=sync; so many were acknowledged"
    return step, acknowledged


def reopen(folder: Path, config: StoreConfig) -> tuple[Step, Store]:
    """Open the store the child left behind; recovery is part of the opening."""
    step = Step("reopen", unit="records")
    with step.timed():
        store = kvstore.open(folder, config=config)
    step.count = store.recovery.records
    return step, store


def check_survivors(store: Store, acknowledged: int, step: Step) -> int:
    """Count what the child left: into `step` goes what is wrong; returns how many are there."""
    found = 0
    next_number = list(range(QUEUES))
    for queue in range(QUEUES):
        offset = 0
        while (pulled := store.pull(TOPIC, queue=queue, offset=offset, limit=_PULL)).messages:
            for message in pulled.messages:
                expected = numbered(TOPIC, next_number[queue], QUEUES)
                step.expect(
                    message.body == expected.body,
                    f"queue {queue} offset {message.offset} holds {message.body[:12]!r}, "
                    f"not {next_number[queue]}",
                )
                next_number[queue] += QUEUES
                found += 1
            offset = pulled.next_offset
    step.expect(found >= acknowledged, f"{found:,} messages are there, not {acknowledged:,}")
    step.expect(
        found <= acknowledged + BATCH, f"{found:,} are there: more than one batch in flight"
    )
    # Numbers 0 to found - 1 went to the queues in turn; what each would get next follows.
    dense = sorted(next_number) == list(range(found, found + QUEUES))
    step.expect(dense, f"a number is missing: the queues end before {sorted(next_number)}")
    step.shown = f"{found:,} are there, in order, once; {found - acknowledged:,} were in flight"
    return found
