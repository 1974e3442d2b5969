"""kill -9 of a writer at any time: what it was told is there, in order, once.

A writer is a child process with two threads. It tells its parent of each put that returned; the
parent kills it, now and then in the middle of recovery, and has the next one go on in the same
folder. KVMQ_SEED=number repeats the draws of a run, though not its timing; KVMQ_KILLS=number makes
it longer.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

import kvstore
from kvstore import Message, PutStatus, Store, StoreBusy, StoredMessage
from tests.support.children import Child, Teller, fail
from tests.support.contents import assert_found_by_key, assert_whole
from tests.support.stores import settings

SEED: Final = int(os.environ.get("KVMQ_SEED", "0")) or Random().getrandbits(32)
KILLS: Final = int(os.environ.get("KVMQ_KILLS", "30"))
"""Of writers that had put something; those that were killed while they opened come on top."""
LOOK_EVERY: Final = 10
"""Kills between two openings by the parent, which looks at everything."""
TOPICS: Final = {"a": 4, "b": 2}
PARENT: Final = "parent"
"""Where the parent puts a message each time it looks."""

Name = tuple[int, int, int]
"""Which message: of which writer, which of its threads, which of that thread's."""


class Ack(NamedTuple):
    """The answer that a writer got for a message."""

    name: Name
    topic: str
    queue: int
    offset: int
    position: int
    message_id: str
    status: str


def config(flush: str, write_mode: str) -> kvstore.StoreConfig:
    """Everything happens often: segments of 64 KiB, a checkpoint every 100 KiB."""
    return settings(
        flush=flush,
        write_mode=write_mode,
        checkpoint_bytes=100_000,
        stage_bytes=32 << 10,
        stage_interval=0.02,
        flush_interval=0.03,
        busy_timeout=20.0,
    )


def text(name: Name) -> bytes:
    """A message's body: 30 to 400 bytes that say whose it is, all over."""
    head = b"%d.%d.%d " % name
    size = 30 + (name[2] * 37 + name[0] * 11) % 370
    return (head * (size // len(head) + 1))[:size]


def whose(body: bytes) -> Name:
    """The message of a body, which must be whole."""
    writer, thread, number = (int(n) for n in body.split(b" ")[0].split(b"."))
    name = (writer, thread, number)
    assert body == text(name)
    return name


def topics(writer: int) -> dict[str, int]:
    """The topics a writer puts to, with their queues; one is its own, one its forerunner's."""
    return {**TOPICS, f"new{writer}": 1, f"new{max(0, writer - 1)}": 1}


# --- the child ---


def write(tell: Teller, path: Path, flush: str, write_mode: str, writer: int) -> None:
    """Open the store and put, without end."""
    tell("opening")
    store = kvstore.open(path, config=config(flush, write_mode))
    there = {t.name for t in store.topics()}
    for name, queues in topics(writer).items():
        if name not in there:
            store.create_topic(name, queues=queues)
    tell("opened")
    threads = [threading.Thread(target=run, args=(tell, store, writer, n)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def run(tell: Teller, store: Store, writer: int, thread: int) -> None:
    """One thread of a writer."""
    try:
        _put_on(tell, store, Random(SEED * 1000 + writer * 2 + thread), writer, thread)
    except BaseException:
        fail(tell)


def _put_on(tell: Teller, store: Store, random: Random, writer: int, thread: int) -> None:
    places = [(t, q) for t, n in topics(writer).items() for q in range(n)]
    number = 0
    while True:
        batch = [
            _message((writer, thread, n), *random.choice(places))
            for n in range(number, number + random.choice((1, 1, 5, 32)))
        ]
        try:
            results = store.put_batch(batch)
        except StoreBusy:
            continue
        told = [f"{r.topic} {r.queue} {r.offset} {r.position} {r.message_id}" for r in results]
        tell(f"put {thread} {number} {results[0].status}," + ",".join(told))
        number += len(batch)
        chance = random.random()
        if chance < 0.03:
            end = results[-1].position + results[-1].size
            store.flush()
            tell(f"flushed {end}")
        elif chance < 0.05:
            store.checkpoint()
        elif chance < 0.06:
            store.seal()
        elif chance < 0.16:
            r = results[-1]
            commit = f"g{thread} {r.topic} {r.queue} {r.offset + 1} {thread} {number - 1}"
            tell(f"committing {commit}")
            store.commit_offset(f"g{thread}", r.topic, r.queue, r.offset + 1)
            tell(f"committed {commit}")


def _message(name: Name, topic: str, queue: int) -> Message:
    keys = ("{}-{}-{}".format(*name), f"some-{name[0]}-{name[2] // 20}")
    return Message(topic, text(name), queue=queue, tag=f"tag{name[2] % 3}", keys=keys)


# --- the parent ---


class Commit(NamedTuple):
    """A writer's commit of the offset behind a message, begun or told done."""

    offset: int
    behind: Name
    done: bool


class Ledger:
    """The answers that the writers reported."""

    def __init__(self) -> None:
        self.acks: list[Ack] = []
        self.flushed: dict[int, int] = {}
        self.commits: dict[tuple[str, str, int], list[Commit]] = defaultdict(list)

    def note(self, writer: int, lines: Iterable[str]) -> None:
        """Read what a writer told."""
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "put":
                self._note_put(writer, rest)
            elif word == "flushed":
                self.flushed[writer] = max(int(rest), self.flushed.get(writer, 0))
            elif word in ("committing", "committed"):
                group, topic, queue, offset, thread, number = rest.split()
                name = (writer, int(thread), int(number))
                commit = Commit(int(offset), name, word == "committed")
                self.commits[group, topic, int(queue)].append(commit)

    def _note_put(self, writer: int, rest: str) -> None:
        head, *messages = rest.split(",")
        thread, number, status = head.split()
        for n, m in enumerate(messages, int(number)):
            topic, queue, offset, position, message_id = m.split()
            self.acks.append(
                Ack(
                    (writer, int(thread), n),
                    topic,
                    int(queue),
                    int(offset),
                    int(position),
                    message_id,
                    status,
                )
            )


def look(path: Path, used: kvstore.StoreConfig, ledger: Ledger, random: Random, looks: int) -> None:
    """Open the store, the `looks`-th time: everything is as the writers were told."""
    with kvstore.open(path, config=used) as store:
        assert not store.recovery.damage
        if looks == 0:
            store.create_topic(PARENT, queues=1)
        found = _by_name(assert_whole(store))
        _assert_no_holes(found)
        lost = [a for a in ledger.acks if a.name not in found]
        for a in ledger.acks:
            m = found.get(a.name)
            if m is not None:
                assert (m.topic, m.queue, m.offset, m.position, m.message_id) == a[1:6]
        assert {a.status for a in lost} <= {PutStatus.STAGED}
        _assert_last(lost, found, ledger)
        ends = {name[:2]: m for name, m in sorted(found.items())}
        assert_found_by_key(store, list(ends.values())[-40:] + random.sample([*found.values()], 60))
        _assert_committed(store, found, ledger)
        assert store.put(PARENT, b"%d" % looks, queue=0).offset == looks
        assert store.get(PARENT, 0, looks).body == b"%d" % looks
    print(f"{len(ledger.acks)} acknowledged, {len(found)} there, {len(lost)} lost")


def _by_name(found: dict[tuple[str, int], list[StoredMessage]]) -> dict[Name, StoredMessage]:
    """Every message, of which there is none twice and none out of order."""
    named: dict[Name, StoredMessage] = {}
    for (topic, _), messages in found.items():
        if topic == PARENT:
            continue
        last: dict[int, Name] = {}
        writer = 0
        for m in messages:
            name = whose(m.body)
            assert name not in named, f"{name} is there twice"
            named[name] = m
            assert name[0] >= writer
            assert last.get(name[1], (-1,)) < name, f"{name} is behind {last[name[1]]}"
            writer, last[name[1]] = name[0], name
    return named


def _assert_no_holes(found: dict[Name, StoredMessage]) -> None:
    """Of each writer's each thread there is a leading part."""
    count: dict[tuple[int, int], int] = defaultdict(int)
    highest: dict[tuple[int, int], int] = defaultdict(int)
    for writer, thread, number in found:
        count[writer, thread] += 1
        highest[writer, thread] = max(highest[writer, thread], number)
    assert {k: n - 1 for k, n in count.items()} == highest


def _assert_last(lost: list[Ack], found: dict[Name, StoredMessage], ledger: Ledger) -> None:
    """A writer's end lost only the messages put last, behind those that it had flushed."""
    ends: dict[int, int] = {}
    for name, m in found.items():
        ends[name[0]] = max(ends.get(name[0], -1), m.position)
    for a in lost:
        assert a.position > ends.get(a.name[0], -1)
        assert a.position >= ledger.flushed.get(a.name[0], 0)


def _assert_committed(store: Store, found: dict[Name, StoredMessage], ledger: Ledger) -> None:
    """A group goes on behind a message that is there, or where what was lost began."""
    ends: dict[tuple[str, int, int], int] = {}
    for (writer, _, _), m in found.items():
        key = (m.topic, m.queue, writer)
        ends[key] = max(ends.get(key, 0), m.offset + 1)
    for (group, topic, queue), commits in ledger.commits.items():
        offset = store.committed_offset(group, topic, queue)
        last = max((n for n, c in enumerate(commits) if c.done), default=-1)
        may: set[int | None] = {None} if last < 0 else set()
        for c in commits[max(last, 0) :]:
            is_there = c.behind in found
            held = [
                e for (t, q, w), e in ends.items() if (t, q) == (topic, queue) and w <= c.behind[0]
            ]
            may.add(c.offset if is_there else max(held, default=0))
        assert offset in may, f"{group} of {topic} {queue}: {offset}, not one of {may}"


MODES = [("sync", "mapped"), ("async", "mapped"), ("sync", "staged"), ("async", "staged")]


@pytest.mark.parametrize(("flush", "write_mode"), MODES)
def test_what_was_acknowledged_survives_every_kill_in_order_and_once(
    tmp_path: Path, flush: str, write_mode: str
) -> None:
    print(f"KVMQ_SEED={SEED}")
    random = Random(SEED)
    ledger = Ledger()
    kills = 0
    for writer in range(10_000):
        with Child(write, tmp_path / "a", flush, write_mode, writer) as child:
            if writer % 5 == 4:
                child.wait_for("opening")
                told = list(child.lines(random.uniform(0, 0.03)))
            else:
                told = [child.wait_for("put"), *child.lines(random.uniform(0.02, 0.12))]
                kills += 1
            ledger.note(writer, told + child.kill())
        if kills % LOOK_EVERY == 0 and writer % 5 != 4:
            used = config(flush, write_mode)
            look(tmp_path / "a", used, ledger, random, kills // LOOK_EVERY - 1)
        if kills == KILLS:
            break
    assert kills == KILLS
    acknowledged = {a.name for a in ledger.acks}
    assert len(acknowledged) == len(ledger.acks) > 1000
