"""The child process that is killed while it writes.

The idea: `python -m kvstore.cli.demo.writer DIR TOPIC QUEUES` puts numbered messages with
`flush="sync"` and, after each batch that returned, writes how many are acknowledged to standard
output. It never ends by itself.

Invariant: a number that was written to standard output was acknowledged by the store before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import kvstore
from kvstore import Message, StoreConfig

BATCH: Final = 32


def numbered(topic: str, number: int, queues: int) -> Message:
    """Message `number` of the writer; its body says which it is, and is long enough to be torn."""
    return Message(
        topic=topic,
        body=f"{number:012d}".encode() * 20,
        queue=number % queues,
        tag="numbered",
        keys=(f"n{number}",),
    )


def write(folder: Path, topic: str, queues: int) -> None:
    """Put and acknowledge until killed."""
    with kvstore.open(folder, config=StoreConfig(flush="sync")) as store:
        done = 0
        while True:
            store.put_batch([numbered(topic, done + i, queues) for i in range(BATCH)])
            done += BATCH
            sys.stdout.write(f"{done}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
