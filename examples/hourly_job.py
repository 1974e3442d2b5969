"""An hourly job: each of its times once, whichever process is there, and across restarts.

python -m examples.hourly_job
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime

import kvstore


def main() -> None:
    """Sets up the hourly job, and runs one that comes each second, twice."""
    with tempfile.TemporaryDirectory() as folder, kvstore.open(folder) as store:
        store.create_topic("jobs")
        store.create_group("workers")
        store.schedule("report", "jobs", b"report", cron="0 * * * *", missed="once", exist_ok=True)
        store.schedule("tick", "jobs", b"tick", every=1, exist_ok=True)
        hour = store.next_firings("report", 1)[0]
        sys.stdout.write(
            f"the next report is at minute {datetime.fromtimestamp(hour / 1000, UTC).minute}\n"
        )

        def work(popped: kvstore.Popped) -> None:
            sys.stdout.write(f"{popped.message.body.decode()}\n")

        with store.consume("workers", "jobs", work, count=2) as consumer:
            consumer.wait()


if __name__ == "__main__":
    main()
