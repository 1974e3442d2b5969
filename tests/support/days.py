"""A store of many days, as an operator's is: what `kvmq spark report` is tried on.

The idea: a virtual clock goes through the days hour by hour; topics of different sizes, some with a
week's rhythm, one that grows, get messages with keys of which few are frequent; two groups give up
on some; reminders are delayed, and payments prepared, if wanted; a worker moves what is due once a
week. All drawn from one seed: the same store every time.

    python -m tests.support.days FOLDER --days 120 --messages 300000
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Final, NamedTuple

import kvstore
from kvstore import Message, Store, StoreConfig
from tests.support import inside
from tests.support.clock import VirtualClock
from tiering import Policy, Worker

DAY: Final = 86_400.0
BEGIN_MS: Final = 1_788_220_800_000
"""2026-09-01, a Tuesday."""
_HOURS: Final = (2, 9, 11, 14, 16, 20, 23)
"""When messages come; the last ones just before midnight."""
_WORDS: Final = ("paid", "sent", "open", "closed", "north", "south", "refund", "retry", "gift")


class Kind(NamedTuple):
    """A topic: its share of the messages, words in a body, mean delay in ms, quiet at weekends,
    growth over the whole time.
    """

    name: str
    share: float
    words: int
    delay: float
    is_weekly: bool = False
    growth: float = 0.0


KINDS: Final = (
    Kind("orders", 0.22, 60, 12, is_weekly=True),
    Kind("clicks", 0.34, 18, 45, growth=2.0),
    Kind("telemetry-sensors", 0.20, 10, 900),
    Kind("payments", 0.09, 80, 8, is_weekly=True),
    Kind("invoices", 0.05, 220, 25, is_weekly=True),
    Kind("mail-outgoing", 0.04, 120, 4_000),
    Kind("audit", 0.04, 50, 5),
    Kind("search-queries", 0.02, 12, 30),
)
GROUPS: Final = (("billing", "payments", 0.02), ("mailer", "mail-outgoing", 0.04),
                 ("billing", "orders", 0.003))  # fmt: skip
"""Groups, topics they read, and of which share of the messages they give up on it."""


def cold_of(folder: Path) -> Path:
    """Where the store's cold archives are: beside it."""
    return folder.absolute().with_name(f"{folder.name}-cold")


def make(
    folder: Path,
    days: int,
    messages: int,
    *,
    warm_days: int = 21,
    seed: int = 7,
    with_waits: bool = False,
) -> int:
    """Make the store, of which two days are hot; returns the last moment, ms. `with_waits`: some
    messages are delayed or prepared.
    """
    policy = Policy(
        hot_for=2 * DAY, warm_for=warm_days * DAY, cold_for=400 * DAY, warm="archive",
        cold=str(cold_of(folder)), clock_doubt=0.0,
    )  # fmt: skip
    draw, waits = random.Random(seed), random.Random(seed)
    clock = VirtualClock(BEGIN_MS)
    config = StoreConfig(
        segment_size=4 << 20, clock=clock, watermarks=(0.98, 0.99, 1.0), transaction_checks=3
    )
    with kvstore.open(folder, config) as store, Worker(store, policy) as worker:
        store.on_check("checkout", lambda message: "unknown")
        store.on_check("cart", lambda message: "rollback")
        for kind in KINDS:
            store.create_topic(kind.name, queues=2)
        for group in sorted({name for name, _, _ in GROUPS}):
            store.create_group(group, max_attempts=2)
        for day in range(days):
            for before, hour in zip((0, *_HOURS), _HOURS, strict=False):
                _pass(store, clock, waits, (hour - before) * 3600.0)
                _put(store, clock, draw, day, days, messages / days / len(_HOURS))
            _give_up(store, clock, draw, messages / days)
            if with_waits:
                _wait(store, clock, waits)
            clock.advance(DAY - (clock.now_ms() - BEGIN_MS) / 1000 % DAY)
            store.seal()
            if (day + 1) % 7 == 0 or day + 1 == days:
                report = worker.run_once()
                assert not report.failed, report.failed
        # The last day is under way: some of its messages are in the log.
        clock.advance(9 * 3600.0)
        _put(store, clock, draw, days, days, messages / days / 3)
    return clock.now_ms()


def _put(
    store: Store, clock: VirtualClock, draw: random.Random, day: int, days: int, count: float
) -> None:
    """Puts the messages of one hour."""
    found = []
    for kind in KINDS:
        some = count * kind.share * (1 + kind.growth * day / days) * draw.uniform(0.8, 1.2)
        if kind.is_weekly and (day + 1) % 7 in (5, 6):
            some *= 0.25
        found += [_message(kind, clock.now_ms(), draw) for _ in range(max(1, round(some)))]
    draw.shuffle(found)
    for at in range(0, len(found), 64):
        store.put_batch(found[at : at + 64])


def _message(kind: Kind, now_ms: int, draw: random.Random) -> Message:
    number = min(int(draw.paretovariate(0.7)), 5_000)
    words = draw.choices(_WORDS, k=kind.words)
    delay = round(draw.expovariate(1 / kind.delay) * (20 if draw.random() < 0.01 else 1))
    return Message(
        kind.name,
        json.dumps({"id": number, "at": now_ms, "text": " ".join(words)}).encode(),
        tag=words[0],
        keys=[f"customer-{number}"],
        properties={"region": draw.choice(("eu", "us", "apac"))},
        born_at=now_ms - delay,
    )


def _give_up(store: Store, clock: VirtualClock, draw: random.Random, a_day: float) -> None:
    """Makes dead letters: a group takes messages twice, never acks them, and looks a third time."""
    for group, topic, share in GROUPS:
        kind = next(kind for kind in KINDS if kind.name == topic)
        for _ in range(max(1, round(a_day * kind.share * share * draw.uniform(0.2, 2.0)))):
            for _attempt in range(3):
                store.pop(group, topic, limit=1, invisible_for=1.0)
                clock.advance(1.5)


def _pass(store: Store, clock: VirtualClock, draw: random.Random, seconds: float) -> None:
    """Lets time pass, and delivers messages when they are due, a moment late."""
    end = clock.now_ms() + round(1000 * seconds)
    while (first := store.timers(limit=1).messages) and first[0].deliver_at < end:
        late = draw.expovariate(1 / 4) * (40 if draw.random() < 0.01 else 1)
        clock.advance(max(0.0, (first[0].deliver_at + late - clock.now_ms()) / 1000))
        inside.deliver_due(store)
    clock.advance(max(0.0, (end - clock.now_ms()) / 1000))


def _wait(store: Store, clock: VirtualClock, draw: random.Random) -> None:
    """Lets the messages of one day wait, and ends the waits of most."""
    now = clock.now_ms()
    for _ in range(draw.randint(8, 20)):
        after = round(draw.uniform(0.1, 6.0) * DAY * 1000)
        put = store.put("mail-outgoing", b"a reminder", deliver_at=now + after)
        if draw.random() < 0.15:
            store.cancel(put.message_id)
    for topic, group in (("payments", "checkout"), ("orders", "cart")):
        for _ in range(draw.randint(4, 12)):
            prepared = store.prepare(topic, b"%d" % now, group=group, immunity=60.0)
            clock.advance(draw.expovariate(2.0))
            if draw.random() < 0.9:
                store.commit(prepared)
            elif draw.random() < 0.7:
                store.rollback(prepared)
    for _ in range(4):
        clock.advance(120.0)
        inside.ask_about_transactions(store)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=120)
    parser.add_argument("--messages", type=int, default=300_000)
    options = parser.parse_args()
    print(make(options.folder, options.days, options.messages, with_waits=True))


if __name__ == "__main__":
    main()
