"""A reminder in three days, that may be moved or taken back until then.

python -m examples.reminder
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta

import kvstore


def remind(store: kvstore.Store, person: str, text: str, at: datetime) -> str:
    """Reminds a person at a time; the id moves the reminder, or takes it back."""
    due = int(at.timestamp() * 1000)
    return store.put("reminders", text.encode(), keys=[person], deliver_at=due).message_id


def main() -> None:
    """Reminds of three things, of which one is moved and one taken back."""
    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as folder, kvstore.open(folder) as store:
        store.create_topic("reminders")
        store.create_group("letters")
        remind(store, "ann", "water the plants", now + timedelta(seconds=0.3))
        moved = remind(store, "bob", "call the bank", now + timedelta(days=3))
        dropped = remind(store, "ann", "buy milk", now + timedelta(days=3))
        store.change_delay(moved, delay=0.6)
        assert store.cancel(dropped)

        def write(popped: kvstore.Popped) -> None:
            message = popped.message
            sys.stdout.write(f"{message.keys[0]}: {message.body.decode()}\n")

        with store.consume("letters", "reminders", write, count=2) as consumer:
            consumer.wait()


if __name__ == "__main__":
    main()
