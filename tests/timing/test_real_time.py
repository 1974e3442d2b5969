"""Delivery by the machine's own clock: soon after the time asked for, and never before it.

A busy machine wakes every thread late. So the delivery is compared with a thread that sleeps until
the same times, in the same run.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Final

from kvstore import Message
from tests.support.stores import opened, settings

_COUNT: Final = 150
_APART_MS: Final = 7
_PROMISED_MS: Final = 50


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def slept_until(times: list[int]) -> list[int]:
    """By how many ms a thread is late that sleeps until each of some times."""
    late = []
    for due in times:
        time.sleep(max(0, due - now_ms()) / 1000)
        late.append(max(0, now_ms() - due))
    return late


def most_of(late: list[int]) -> int:
    """The 99th percentile."""
    return sorted(late)[len(late) * 99 // 100]


def test_messages_come_within_50_ms_of_their_time_and_never_early(tmp_path: Path) -> None:
    with opened(tmp_path, settings()) as store:
        first = now_ms() + 600
        times = [first + n * _APART_MS for n in range(_COUNT)]
        slept: list[int] = []
        sleeper = threading.Thread(target=lambda: slept.extend(slept_until(times)))
        sleeper.start()
        mixed = random.Random(1).sample(times, _COUNT)
        # Some are put before the thread knows of any, others while it sleeps for a later one.
        store.put_batch([Message("t", b"x", queue=0, deliver_at=due) for due in mixed[:100]])
        for due in mixed[100:]:
            store.put("t", b"x", queue=0, deliver_at=due)
        sleeper.join()
        while store.timers("t").count:
            time.sleep(0.005)
        found = store.pull("t", 0, 0, limit=_COUNT).messages
    asked = [int(m.properties["TIMER_OUT_MS"]) for m in found]
    late = [m.stored_at - due for m, due in zip(found, asked, strict=True)]
    assert asked == times
    assert min(late) >= 0
    assert most_of(late) <= _PROMISED_MS + 2 * most_of(slept)
