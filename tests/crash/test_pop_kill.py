"""kill -9 of workers that pop and ack: nothing is lost, and what was acked never comes again.

A worker is a child process with four threads that pop and ack and one that puts. It tells its
parent of each message put, handed out and acked, the last when the call has returned; the parent
kills it at any time and has the next one go on in the same folder. KVMQ_SEED=number repeats the
draws of a run, though not its timing; KVMQ_POP_KILLS=number makes it longer.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import pytest

import kvstore
from kvstore import Message, Popped, ReceiptExpired, Store, StoreConfig
from tests.support.children import Child, Teller, fail
from tests.support.contents import assert_whole
from tests.support.stores import settings

SEED: Final = int(os.environ.get("KVMQ_SEED", "0")) or Random().getrandbits(32)
KILLS: Final = int(os.environ.get("KVMQ_POP_KILLS", "30"))
THREADS: Final = 4
QUEUES: Final = 3
AHEAD: Final = 3000
"""Messages the putter may be ahead of what it has heard was acked."""
LIMITS: Final = (1, 1, 3, 16, 32)
INVISIBLE: Final = (0.02, 0.1, 0.5, 5.0)


def config(write_mode: str) -> StoreConfig:
    """Checkpoints and segments come often."""
    return settings(
        write_mode=write_mode,
        checkpoint_bytes=100_000,
        stage_interval=0.02,
        flush_interval=0.05,
        busy_timeout=20.0,
    )


# --- the child ---


def work(tell: Teller, path: Path, write_mode: str, worker: int) -> None:
    """Open the store, put, pop and ack, without end."""
    tell("opening")
    store = kvstore.open(path, config(write_mode))
    if not any(g.name == "g" for g in store.groups()):
        store.create_topic("t", queues=QUEUES)
        store.create_group("g", max_attempts=1_000_000)
    tell("opened")
    done = [0]
    threads = [
        threading.Thread(target=run, args=(tell, pop_on, store, worker, n, done))
        for n in range(THREADS)
    ]
    threads.append(threading.Thread(target=run, args=(tell, put_on, store, worker, THREADS, done)))
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def run(
    tell: Teller, what: object, store: Store, worker: int, thread: int, done: list[int]
) -> None:
    """One thread of a worker."""
    try:
        assert callable(what)
        what(tell, store, Random(SEED * 1000 + worker * 10 + thread), worker, done)
    except BaseException:
        fail(tell)


def put_on(tell: Teller, store: Store, random: Random, worker: int, done: list[int]) -> None:
    number = 0
    while True:
        if number > done[0] + AHEAD:
            time.sleep(0.001)
            continue
        batch = [
            Message("t", b"%d.%d" % (worker, n), random.randrange(QUEUES), tag=f"tag{n % 3}")
            for n in range(number, number + random.choice((1, 5, 20)))
        ]
        store.put_batch(batch)
        store.flush()  # so that what is told stays, in every write mode
        tell(f"put {worker}.{number} {len(batch)}")
        number += len(batch)


def pop_on(tell: Teller, store: Store, random: Random, worker: int, done: list[int]) -> None:
    while True:
        attempt_id = f"{worker}-{random.random()}" if random.random() < 0.2 else None
        limit = random.choice(LIMITS)
        popped = store.pop("g", "t", limit, random.choice(INVISIBLE), 0.05, attempt_id=attempt_id)
        if not popped:
            continue
        tell("popped " + names(popped))
        if random.random() < 0.1:
            back = popped.pop()
            with suppress(ReceiptExpired):
                store.change_invisible(back.receipt, random.choice((0, 0.01, 0.2, None)))
        if random.random() < 0.05:
            continue  # as a worker that fails does
        tell("acking " + names(popped))
        if len(popped) == 1 or random.random() < 0.2:
            results = [ack_one(store, p) for p in popped]
        else:
            results = [r is True for r in store.ack_batch([p.receipt for p in popped])]
        acked = [p for p, r in zip(popped, results, strict=True) if r]
        done[0] += len(acked)
        if acked:
            tell("acked " + names(acked))


def ack_one(store: Store, p: Popped) -> bool:
    try:
        store.ack(p.receipt)
    except ReceiptExpired:
        return False
    return True


def names(popped: list[Popped]) -> str:
    """Which they are, short enough for one write to a pipe."""
    return " ".join(f"{p.message.body.decode()}:{p.attempt}" for p in popped)


# --- the parent ---


class Ledger:
    """The workers' reports. Threads' lines may come in another order than their calls."""

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.acking: set[str] = set()
        """Messages that somebody was about to ack."""
        self.acked: dict[str, int] = {}
        """Message -> the attempt by which it was acked."""
        self.attempts: dict[str, dict[int, int]] = defaultdict(dict)
        """Message -> attempt -> the worker it was."""

    def note(self, worker: int, lines: Iterable[str]) -> None:
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "put":
                first, count = rest.split()
                owner, number = map(int, first.split("."))
                self.put |= {f"{owner}.{number + n}" for n in range(int(count))}
            elif word in ("popped", "acking", "acked"):
                for each in rest.split():
                    name, attempt = each.split(":")
                    self._note(worker, word, name, int(attempt))

    def _note(self, worker: int, word: str, name: str, attempt: int) -> None:
        if word == "acking":
            self.acking.add(name)
        elif word == "acked":
            assert self.acked.setdefault(name, attempt) == attempt, f"{name} was acked twice"
        else:
            assert attempt not in self.attempts[name], f"attempt {attempt} of {name} came twice"
            self.attempts[name][attempt] = worker

    def check(self) -> None:
        """No message came again once its ack was confirmed; attempts never went back."""
        for name, attempt in self.acked.items():
            assert max(self.attempts[name]) == attempt, f"{name} came again, though acked"
        for name, attempts in self.attempts.items():
            workers = [worker for _, worker in sorted(attempts.items())]
            assert workers == sorted(workers), f"the attempts of {name} went back"


@pytest.mark.parametrize("write_mode", ["mapped", "staged"])
def test_every_message_is_acked_in_the_end_and_every_confirmed_ack_stays(
    tmp_path: Path, write_mode: str
) -> None:
    print(f"KVMQ_SEED={SEED}")
    random = Random(SEED)
    ledger = Ledger()
    kills = KILLS if write_mode == "mapped" else KILLS // 3
    for worker in range(kills):
        with Child(work, tmp_path / "s", write_mode, worker) as child:
            told = [child.wait_for("popped"), *child.lines(random.uniform(0.02, 0.3))]
            ledger.note(worker, told + child.kill())
    before = len(ledger.acked)
    with kvstore.open(tmp_path / "s", config(write_mode)) as store:
        assert not store.recovery.damage
        drain(store, ledger, kills)
        there = {m.body.decode() for ms in assert_whole(store).values() for m in ms}
        ledger.check()
        assert ledger.put <= there
        # An ack that was under way when its worker was killed may hold, unconfirmed.
        assert there <= ledger.acked.keys() | ledger.acking, "some message was never acked"
        assert len(there - ledger.acked.keys()) <= kills * THREADS * LIMITS[-1]
        assert [lag.lag for lag in store.lag("g", "t")] == [0] * QUEUES
    print(f"{len(there)} messages, {before} acked by workers that were killed")
    assert before > 10 * kills


def drain(store: Store, ledger: Ledger, worker: int) -> None:
    """Pop and ack until nothing is left or locked; locks of the killed run out first."""
    until = time.monotonic() + 45
    while any(lag.lag for lag in store.lag("g", "t")):
        assert time.monotonic() < until, "some message never came"
        popped = store.pop("g", "t", 200, 60.0, 1.0)
        ledger.note(worker, ["popped " + names(popped)] if popped else [])
        assert store.ack_batch([p.receipt for p in popped]) == [True] * len(popped)
        ledger.note(worker, ["acked " + names(popped)] if popped else [])
    assert store.pop("g", "t", 200) == []
