"""Pop against a plain dictionary model: no message lost, doubled or raised from the dead.

The model knows of each message what it is for each group: unread, locked by a delivery, done; or
"maybe" where a pop with a filter may have passed it over, which nobody can see at once. Pops are
not predicted: what comes is held against what may come and what must.

KVMQ_POP_RUNS=number and KVMQ_POP_STEPS=number make it longer.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvstore
from kvstore import (
    InFlight,
    Message,
    Nack,
    Popped,
    ReceiptExpired,
    Store,
    StoreConfig,
    StoredMessage,
)
from kvstore.core.popping.inflight import Change
from kvstore.pop.claimant import Claimant
from tests.support.clock import VirtualClock
from tests.support.stores import SEGMENT, killed

RUNS: Final = int(os.environ.get("KVMQ_POP_RUNS", "500"))
STEPS: Final = int(os.environ.get("KVMQ_POP_STEPS", "50"))
EXAMPLES_OF_A_STORE: Final = 25
"""To make a store takes longer than an example: topics and groups have names of their own."""
TOPICS: Final = {"a": 3, "b": 1}
GROUPS: Final = ("g", "h")
TAGS: Final = ("x", "y")
FILTERS: Final = (None, None, None, "x", "y", "x || z")
TIMES: Final = (0.5, 1.0, 5.0, 30.0, 4000.0)

GROUP_SETTINGS: Final = st.fixed_dictionaries(
    {
        "max_attempts": st.sampled_from([1, 2, 3, 16]),
        "backoff": st.sampled_from([(), (2.0, 20.0)]),
        "max_in_flight": st.sampled_from([None, None, 4]),
        "ordered": st.sampled_from([False, False, True]),
        "dead_letter_expired": st.booleans(),
    }
)
DRAFTS: Final = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([1, 1, 300]),
        st.sampled_from(TAGS),
        st.sampled_from([None, "m", "n"]),
        st.sampled_from([None, None, None, 0.0, 1.0, 20.0]),
    ),
    min_size=1,
    max_size=8,
)


@dataclass(eq=False)
class Put:
    """A message of a topic."""

    queue: int
    offset: int
    body: bytes
    tag: str
    size: int
    message_group: str | None
    expires_at: int | None = None


@dataclass(eq=False)
class Entry:
    """A message as a group has it. `maybe` unless it is certain whether it is done."""

    put: Put
    state: str = "unread"
    attempts: int = 0
    lock: Delivery | None = None
    reason: str = ""
    """Why it was given back last."""
    is_redriven: bool = False
    """Put back to an ordered group and not handed out since: unread here, while a row of parked
    messages names it.
    """

    def end(self, how: str, opening: int, state: str = "done") -> None:
        if self.lock is not None:
            self.lock.ended, self.lock.ended_in = how, opening
        self.lock, self.state, self.is_redriven = None, state, False


@dataclass(eq=False)
class Delivery:
    """The delivery of a receipt, or a row without one: of a redrive, or of a nack. `ended` says how
    it ended, `ended_in` in which opening.
    """

    receipt: str
    entry: Entry
    attempt: int
    due: int
    attempt_id: str | None
    ended: str = ""
    ended_in: int = 0


@dataclass(eq=False)
class Group:
    """A group: its settings, and by topic and queue its messages."""

    name: str
    max_attempts: int
    backoff: tuple[float, ...]
    max_in_flight: int | None
    ordered: bool
    dead_letter_expired: bool
    entries: dict[str, list[list[Entry]]] = field(default_factory=dict)
    dead: int = 0
    """How many dead letters were seen."""
    letters: list[Entry] = field(default_factory=list)
    """Those of its own that were not put back."""
    had_no_order: bool = False
    """Whether it was ever not an ordered one: then much may have been taken out of order."""

    def backoff_ms(self, attempts: int) -> int:
        if not self.backoff:
            return 0
        return round(self.backoff[min(attempts, len(self.backoff)) - 1] * 1000)

    def of(self, topic: str, queue: int | None = None) -> Iterator[Entry]:
        for number, entries in enumerate(self.entries[topic]):
            if queue is None or queue == number:
                yield from entries

    def all(self) -> Iterator[Entry]:
        for topic in self.entries:
            yield from self.of(topic)

    def fellows(self, topic: str, entry: Entry) -> Iterator[Entry]:
        """The messages of the same message group before this one."""
        for other in self.entries[topic][entry.put.queue][: entry.put.offset]:
            if other.put.message_group == entry.put.message_group:
                yield other


def matches(wanted: str | None, tag: str) -> bool:
    return wanted is None or tag in [part.strip() for part in wanted.split("||")]


def kept_reason(reason: str) -> str:
    """A reason as the store keeps it."""
    raw = reason.replace("\x00", " ").replace("\x01", " ").encode()[:512]
    return raw.decode(errors="ignore")


class Pops(RuleBasedStateMachine):
    """See the module."""

    folder: ClassVar[Path | None] = None
    store: ClassVar[Store]
    clock: ClassVar[VirtualClock]
    config: ClassVar[StoreConfig]
    numbers: ClassVar[Iterator[int]] = itertools.count()
    remembers: ClassVar[bool] = True
    """Whether a store knows how all deliveries of its opening ended."""
    used: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.take_store()
        number = next(Pops.numbers)
        self.topics = {f"{name}{number}": queues for name, queues in TOPICS.items()}
        self.names = [f"{name}{number}" for name in GROUPS]
        self.puts: dict[str, list[list[Put]]] = {}
        self.groups: dict[str, Group] = {}
        self.deliveries: list[Delivery] = []
        self.receipts: dict[str, Delivery] = {}
        self.opening = 0
        self.restarts = 0
        self.made_anew = 0
        self.made = 0

    @classmethod
    def take_store(cls) -> None:
        if cls.used >= EXAMPLES_OF_A_STORE:
            cls.drop_store()
        if cls.folder is None:
            cls.folder, cls.clock, cls.used = Path(tempfile.mkdtemp()), VirtualClock(), 0
            cls.config = StoreConfig(
                segment_size=SEGMENT,
                clock=cls.clock,
                busy_timeout=60.0,
                flush_interval=1e9,
                flush_thorough_interval=1e9,
                checkpoint_interval=1e9,
                offset_sync_interval=None,
            )
            cls.store = kvstore.open(cls.folder / "0", config=cls.config)
        cls.used += 1

    @classmethod
    def drop_store(cls) -> None:
        if cls.folder is not None:
            cls.store.close()
            shutil.rmtree(cls.folder)
            cls.folder = None

    @initialize(made=st.tuples(GROUP_SETTINGS, GROUP_SETTINGS))
    def begin(self, made: tuple[dict[str, object], ...]) -> None:
        for topic, queues in self.topics.items():
            self.store.create_topic(topic, queues=queues)
            self.puts[topic] = [[] for _ in range(queues)]
        for name, chosen in zip(self.names, made, strict=True):
            self.make_group(name, chosen)

    def make_group(self, name: str, chosen: dict[str, object], dead: int = 0) -> None:
        self.store.create_group(name, **chosen)  # type: ignore[arg-type]  # drawn for it
        group = self.groups[name] = Group(name, **chosen)  # type: ignore[arg-type]  # as above
        group.dead = dead
        group.had_no_order = not group.ordered
        for topic, queues in self.puts.items():
            group.entries[topic] = [[Entry(put) for put in queue] for queue in queues]

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    # --- putting and time ---

    @rule(topic=st.sampled_from("ab"), drafts=DRAFTS)
    def put(self, topic: str, drafts: list[tuple[int, int, str, str | None, float | None]]) -> None:
        name = next(n for n in self.topics if n[0] == topic)
        messages = []
        for queue, size, tag, fellows, lives in drafts:
            self.made += 1
            number = queue % self.topics[name]
            body = b"%d " % self.made * size
            fellowship = None if fellows is None else f"{fellows}{number}"
            time = None if lives is None else self.now + round(lives * 1000)
            messages.append(
                Message(name, body, number, tag, message_group=fellowship, expires_at=time)
            )
        for message, r in zip(messages, self.store.put_batch(messages), strict=True):
            queue_of = self.puts[name][r.queue]
            assert r.offset == len(queue_of)
            assert message.tag is not None
            self.learn(name, self.store.get(name, r.queue, r.offset))

    def learn(self, topic: str, m: StoredMessage) -> None:
        """Notes the next message of a queue."""
        assert m.tag is not None
        put = Put(m.queue, m.offset, m.body, m.tag, m.size, m.message_group, m.expires_at)
        self.puts[topic][m.queue].append(put)
        for group in self.groups.values():
            group.entries[topic][m.queue].append(Entry(put))

    def has_expired(self, put: Put) -> bool:
        return put.expires_at is not None and put.expires_at <= self.now

    def wants(self, asked: Asked, put: Put) -> bool:
        """Whether a pop hands a message out when it comes to it."""
        return matches(asked.wanted, put.tag) and not self.has_expired(put)

    @rule(seconds=st.sampled_from(TIMES))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-3600, -10, 3600]))
    def clock_is_set(self, seconds: int) -> None:
        self.clock.step(seconds)

    # --- pop ---

    @rule(
        group=st.sampled_from([0, 0, 1]),
        topic=st.sampled_from("aaab"),
        limit=st.sampled_from([1, 1, 2, 5, 40]),
        queue=st.sampled_from([None, None, None, 0, 1]),
        invisible_for=st.sampled_from([0.001, 1.0, 10.0, 3600.0]),
        wanted=st.sampled_from(FILTERS),
        attempt_id=st.sampled_from([None, None, "i", "j"]),
        max_bytes=st.sampled_from([None, None, None, 1, 1500]),
    )
    def pop(
        self,
        group: int,
        topic: str,
        limit: int,
        queue: int | None,
        invisible_for: float,
        wanted: str | None,
        attempt_id: str | None,
        max_bytes: int | None,
    ) -> None:
        name = next(n for n in self.topics if n[0] == topic)
        if queue is not None:
            queue %= self.topics[name]
        asked = Asked(name, limit, queue, invisible_for, wanted, attempt_id, max_bytes)
        self.pop_as(self.groups[self.names[group]], asked)

    @rule(
        group=st.sampled_from([0, 1]),
        topic=st.sampled_from("ab"),
        limit=st.sampled_from([1, 1, 2]),
        queue=st.sampled_from([None, None, 0]),
        invisible_for=st.sampled_from([1.0, 3600.0]),
        acks=st.booleans(),
    )
    def pop_on(
        self, group: int, topic: str, limit: int, queue: int | None, invisible_for: float,
        acks: bool,
    ) -> None:  # fmt: skip
        """As most consumers do: the same pop again and again. The core takes for most of these."""
        name = next(n for n in self.topics if n[0] == topic)
        asked = Asked(name, limit, queue, invisible_for, None, None, None)
        for _ in range(5):
            known = len(self.deliveries)
            if not self.pop_as(self.groups[self.names[group]], asked):
                return
            for d in self.deliveries[known:] if acks else ():
                self.acked(d, self.store.ack_batch([d.receipt])[0])

    def pop_as(self, group: Group, asked: Asked) -> int:
        """Pop, and hold it against the model; returns how many came."""
        found = self.store.pop(
            group.name,
            asked.topic,
            asked.limit,
            asked.invisible_for,
            filter=asked.wanted,
            queue=asked.queue,
            max_bytes=asked.max_bytes,
            attempt_id=asked.attempt_id,
        )
        if asked.attempt_id is not None and self.came_again(group, asked, found):
            return len(found)
        assert len(found) <= asked.limit
        total = sum(p.message.size for p in found)
        assert asked.max_bytes is None or total <= asked.max_bytes or len(found) == 1
        locked_before = self.locked(group)
        before = {e: e.state for e in group.of(asked.topic)}
        taken = [self.take(group, asked, p) for p in found]
        assert len(set(taken)) == len(taken), "twice in one pop"
        died = self.bury(group, asked)
        is_complete = len(found) < asked.limit and (asked.max_bytes is None or not found)
        self.pass_over(group, asked, taken, before, is_complete=is_complete)
        if group.ordered:
            self.check_order(group, asked.topic, taken)
        if group.max_in_flight is not None:
            assert self.locked(group, certain=True) <= max(group.max_in_flight, locked_before)
        may_free = died or asked.wanted or any(self.has_expired(e.put) for e in before)
        if is_complete and not (group.ordered and may_free):
            self.check_complete(group, asked, before)
        return len(found)

    def came_again(self, group: Group, asked: Asked, found: list[Popped]) -> bool:
        """Whether locks with this attempt id live: then they, and nothing else, came."""
        live = {
            e.lock.receipt: e
            for e in group.of(asked.topic)
            if e.lock is not None
            and e.lock.attempt_id == asked.attempt_id
            and e.lock.due > self.now
        }
        certain = {receipt for receipt, e in live.items() if e.state == "locked"}
        came = [p.receipt for p in found]
        if not certain and not (live and set(came) & live.keys()):
            return False
        assert certain <= set(came) <= live.keys(), "a repeated attempt gets what it had"
        assert len(set(came)) == len(came), "twice in one pop"
        for p in found:
            entry = live[p.receipt]
            assert entry.lock is not None
            assert (p.attempt, p.due_at) == (entry.attempts, entry.lock.due)
            assert p.message.body == entry.put.body
            entry.state = "locked"
        return True

    def take(self, group: Group, asked: Asked, p: Popped) -> Entry:
        """One message that came."""
        m = p.message
        entry = group.entries[asked.topic][m.queue][m.offset]
        assert m.body == entry.put.body
        assert asked.queue is None or m.queue == asked.queue
        assert self.wants(asked, entry.put)
        assert entry.state != "done", "done stays done"
        if entry.lock is not None:
            assert entry.lock.due <= self.now, "a message under two live locks"
        assert p.attempt == entry.attempts + 1 <= group.max_attempts
        due = self.now + round(asked.invisible_for * 1000)
        if p.attempt < group.max_attempts:
            due += group.backoff_ms(p.attempt)
        assert due <= p.due_at <= due + 100
        assert p.receipt not in self.receipts
        entry.end("again", self.opening)
        delivery = Delivery(p.receipt, entry, p.attempt, p.due_at, asked.attempt_id)
        self.deliveries.append(delivery)
        self.receipts[p.receipt] = delivery
        entry.lock, entry.state, entry.attempts = delivery, "locked", p.attempt
        return entry

    def bury(self, group: Group, asked: Asked, topics: Collection[str] = ()) -> int:
        """Records the messages that went to the dead letters, of the topic that was asked for, or
        of several; returns how many.
        """
        name = f"%DLQ%{group.name}"
        if not self.is_there(name):
            return 0
        end = self.store.bounds(name, 0).next_offset
        found: list[StoredMessage] = []
        while group.dead + len(found) < end:
            found += self.store.pull(name, 0, group.dead + len(found), 32).messages
        for m in found:
            origin = m.properties
            topic = origin["DLQ_ORIGIN_TOPIC"]
            assert topic in (topics or {asked.topic})
            queue = int(origin["DLQ_ORIGIN_QUEUE_ID"])
            entry = group.entries[topic][queue][int(origin["DLQ_ORIGIN_QUEUE_OFFSET"])]
            assert m.body == entry.put.body
            assert origin.get("DLQ_NACK_REASON", "") == entry.reason
            assert asked.queue is None or queue == asked.queue
            if origin["DLQ_REASON"] == "expired":
                assert group.dead_letter_expired
                assert self.has_expired(entry.put)
                assert entry.state != "done"
                assert entry.attempts == int(origin["DLQ_ATTEMPTS"])
            else:
                assert entry.state in ("locked", "maybe")
                assert entry.lock is not None
                assert entry.attempts == int(origin["DLQ_ATTEMPTS"]) == group.max_attempts
            assert entry.lock is None or entry.lock.due <= self.now
            entry.end("dead", self.opening)
            group.letters.append(entry)
        group.dead += len(found)
        return len(found)

    def is_there(self, topic: str) -> bool:
        try:
            self.store.topic(topic)
        except kvstore.TopicNotFound:
            return False
        return True

    def pass_over(
        self,
        group: Group,
        asked: Asked,
        taken: list[Entry],
        before: dict[Entry, str],
        *,
        is_complete: bool,
    ) -> None:
        """A message that a pop's filter refused, or that has expired, is done, or may be."""
        highest: dict[int, int] = {}
        for e in taken:
            if e.attempts == 1:
                highest[e.put.queue] = max(e.put.offset, highest.get(e.put.queue, 0))
        is_capped = group.max_in_flight is not None
        is_full = self.is_full(group)
        for e in group.of(asked.topic, asked.queue):
            is_fresh = e.state == "unread" or (e.state == "maybe" and e.lock is None)
            is_passed = e.put.offset < highest.get(e.put.queue, 0)
            if self.wants(asked, e.put):
                if is_fresh and is_passed and not group.ordered:
                    assert before[e] == "maybe", "a message was left out"
                    e.end("passed", self.opening)
                continue
            is_due = e.lock is not None and e.lock.due <= self.now
            if is_fresh and is_passed and not group.ordered:
                e.end("passed", self.opening)
            elif is_fresh or (is_due and e.state in ("locked", "maybe")):
                is_certain = is_complete and not group.ordered
                # A pop without room under the cap looks at no row.
                if is_certain and (not is_full if is_due else not is_capped):
                    e.end("passed", self.opening)
                else:
                    e.state = "maybe"

    def check_order(self, group: Group, topic: str, taken: list[Entry]) -> None:
        for e in taken:
            fellows = group.entries[topic][e.put.queue]
            out = [
                f
                for f in fellows
                if f.put.message_group == e.put.message_group
                and f.state == "locked"
                and f.lock is not None
                and f.lock.due > self.now
            ]
            assert len(out) <= 1, "two of a message group are out"
            for fellow in group.fellows(topic, e):
                if fellow.state == "unread" and group.had_no_order:
                    continue  # passed over by a filter in between, perhaps
                assert fellow.state in ("done", "maybe"), "before one that is not done"
                if fellow.state == "maybe":
                    fellow.end("passed", self.opening)

    def check_complete(self, group: Group, asked: Asked, before: dict[Entry, str]) -> None:
        """Nothing is left that a pop that had room should have taken."""
        is_full = self.is_full(group)
        for e in group.of(asked.topic, asked.queue):
            if before[e] == "maybe" or not self.wants(asked, e.put):
                continue
            if e.state == "unread" and not is_full:
                blocked = group.ordered and any(
                    f.state != "done" for f in group.fellows(asked.topic, e)
                )
                assert blocked, "an unread message was left, though there was room"
            if e.state == "locked":
                assert e.lock is not None
                assert is_full or e.lock.due > self.now, "a due message was left, with room"

    def locked(self, group: Group, *, certain: bool = False) -> int:
        """How many messages are under locks that have not run out, at least or at most."""
        live = sum(e.state == "locked" and e.lock.due > self.now for e in group.all() if e.lock)
        return live if certain else live + sum(e.state == "maybe" for e in group.all())

    def is_full(self, group: Group) -> bool:
        """Whether a group may have no room under its cap."""
        return group.max_in_flight is not None and self.locked(group) >= group.max_in_flight

    # --- ack and change ---

    def pick(self, data: st.DataObject, *, live: bool) -> Delivery:
        pool = [d for d in self.deliveries if not d.ended] if live else self.deliveries
        return data.draw(st.sampled_from(pool or self.deliveries))

    def may_ack(self, d: Delivery) -> set[bool]:
        """The answers that an ack may give: True is good, False expired."""
        entry = d.entry
        if not d.ended:
            return {True, False} if entry.state == "maybe" else {True}
        is_remembered = self.remembers and d.ended_in == self.opening
        if d.ended == "acked":
            is_same = entry.state == "done" and is_remembered
            return {True} if is_same else {True, False}
        if d.ended == "gone" or is_remembered:
            return {False}
        # A restart forgets why: then a receipt that is not due and whose message is done is good.
        may_be_done = entry.state in ("done", "maybe") and self.now < d.due
        return {True, False} if may_be_done else {False}

    def acked(self, d: Delivery, answer: object) -> None:
        good = answer is True
        assert good or isinstance(answer, ReceiptExpired)
        assert good in self.may_ack(d), f"a receipt {d.ended or 'that is current'}: {answer!r}"
        if not d.ended:
            d.entry.end("acked" if good else "passed", self.opening)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), live=st.sampled_from([True, True, False]))
    def ack(self, data: st.DataObject, live: bool) -> None:
        d = self.pick(data, live=live)
        answer: object = True
        try:
            self.store.ack(d.receipt)
        except ReceiptExpired as e:
            answer = e
        self.acked(d, answer)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), live=st.sampled_from([True, True, False]))
    def ack_batch(self, data: st.DataObject, live: bool) -> None:
        pool = [d for d in self.deliveries if not d.ended] if live else self.deliveries
        pool = pool or self.deliveries
        picked = data.draw(st.lists(st.sampled_from(pool), max_size=12))
        answers = self.store.ack_batch([d.receipt for d in picked])
        assert len(answers) == len(picked)
        for d, answer in zip(picked, answers, strict=True):
            self.acked(d, answer)

    @precondition(lambda self: self.deliveries)
    @rule(last=st.integers(1, 6), first=st.integers(0, 2))
    def ack_what_was_popped_last(self, last: int, first: int) -> None:
        picked = self.deliveries[-last:][first:]
        answers = self.store.ack_batch([d.receipt for d in picked])
        for d, answer in zip(picked, answers, strict=True):
            self.acked(d, answer)

    @precondition(lambda self: self.deliveries)
    @rule(
        data=st.data(),
        live=st.sampled_from([True, True, True, False]),
        seconds=st.sampled_from([None, 0, 0, 0.5, 20.0, 7200.0]),
        gives_back=st.sampled_from([False, False, True]),
    )
    def change_invisible(
        self, data: st.DataObject, live: bool, seconds: float | None, gives_back: bool
    ) -> None:
        d = self.pick(data, live=live)
        entry = d.entry
        try:
            receipt = self.store.change_invisible(d.receipt, seconds, gives_back=gives_back)
        except ReceiptExpired as e:
            self.refused(d, e)
            return
        assert not d.ended, "a receipt that is over was taken"
        assert receipt not in self.receipts
        group = next(g for g in self.groups.values() if entry in g.all())
        ms = group.backoff_ms(d.attempt) if seconds is None else round(seconds * 1000)
        keeps = bool(seconds) and not gives_back
        if keeps and d.attempt < group.max_attempts:
            ms += group.backoff_ms(d.attempt)
        has_failed = not keeps and d.attempt >= group.max_attempts
        if has_failed:
            ms = 0
        entry.end("moved", self.opening)
        # An attempt no longer has a message that was given back.
        attempt_id = d.attempt_id if keeps else None
        new = Delivery(receipt, entry, d.attempt, self.now + ms, attempt_id)
        new.due = max(new.due, int(receipt[16:32], 16))  # moved on where the place was taken
        assert new.due <= self.now + ms + 100
        if has_failed:
            new.due = self.now  # it is a dead letter at once, also where its place was taken
        self.deliveries.append(new)
        self.receipts[receipt] = new
        entry.lock, entry.state = new, "locked"
        if has_failed:
            self.died(group, [entry])

    def refused(self, d: Delivery, error: ReceiptExpired) -> None:
        """The change of a lock was refused."""
        if "max_in_flight" in str(error):
            group = next(g for g in self.groups.values() if d.entry in g.all())
            assert not d.ended
            assert d.due <= self.now, "its place was another's"
            assert self.locked(group) >= (group.max_in_flight or 0)
            return
        assert d.ended or d.entry.state == "maybe", "a receipt that is current was refused"
        if not d.ended:
            d.entry.end("passed", self.opening)

    def died(self, group: Group, entries: list[Entry]) -> None:
        """The last attempts at messages were given back: they are dead letters at once."""
        topics = {t for t in group.entries if set(entries) & set(group.of(t))}
        asked = Asked("", 0, None, 0.0, None, None, None)
        assert self.bury(group, asked, topics) == len(entries)
        assert all(e.state == "done" for e in entries), "no dead letter of its last attempt"

    @precondition(lambda self: self.deliveries)
    @rule(
        last=st.integers(1, 5),
        live=st.sampled_from([True, True, False]),
        # No other lock ends at such a time, so none moves these by a millisecond.
        seconds=st.sampled_from([0.701, 13.303]),
        reason=st.sampled_from(["", "it broke", "no\x00\x01 \u00fc" * 100]),
    )
    def nack_batch(self, last: int, live: bool, seconds: float, reason: str) -> None:
        pool = [d for d in self.deliveries if not d.ended] if live else self.deliveries
        picked = (pool or self.deliveries)[-last:]
        answers = self.store.nack_batch([Nack(d.receipt, seconds, reason) for d in picked])
        dead: list[Entry] = []
        for d, answer in zip(picked, answers, strict=True):
            if isinstance(answer, ReceiptExpired):
                self.refused(d, answer)
                continue
            assert answer is True
            assert not d.ended, "a receipt that is over was taken"
            group = self.group_of(d)
            assert group is not None
            has_failed = d.attempt >= group.max_attempts
            due = self.now if has_failed else self.now + round(seconds * 1000)
            entry = d.entry
            entry.end("moved", self.opening)
            entry.lock, entry.state = Delivery("", entry, d.attempt, due, None), "locked"
            entry.reason = kept_reason(reason)
            if has_failed:
                dead.append(entry)
        for group in self.groups.values():
            mine = [e for e in dead if e in set(group.all())]
            if mine:
                self.died(group, mine)

    def group_of(self, d: Delivery) -> Group | None:
        return next((g for g in self.groups.values() if d.entry in set(g.all())), None)

    # --- offsets ---

    @rule(
        group=st.sampled_from([0, 1]),
        topic=st.sampled_from("ab"),
        queue=st.sampled_from([None, 0, 1]),
        to=st.sampled_from(["begin", "end", "offset"]),
        data=st.data(),
    )
    def reset(
        self, group: int, topic: str, queue: int | None, to: str, data: st.DataObject
    ) -> None:
        of = self.groups[self.names[group]]
        name = next(n for n in self.topics if n[0] == topic)
        if queue is not None or to == "offset":
            queue = (queue or 0) % self.topics[name]
        if to == "offset":
            assert queue is not None
            offset = data.draw(st.integers(0, len(self.puts[name][queue])))
            self.store.reset_offset(of.name, name, offset=offset, queue=queue)
        else:
            self.store.reset_offset(of.name, name, to=to, queue=queue)  # type: ignore[arg-type]  # one of the two
            offset = 0 if to == "begin" else 1 << 60
        self.goes_on_at(of, name, queue, offset)

    def goes_on_at(self, group: Group, topic: str, queue: int | None, offset: int) -> None:
        for e in group.of(topic, queue):
            e.end("reset", self.opening, "unread" if e.put.offset >= offset else "done")
            e.attempts, e.reason = 0, ""
        for d in self.deliveries:
            e = d.entry
            # The ack of a message is over when it is unread again; a restart forgets that.
            if d.ended == "acked" and d.ended_in == self.opening and e.state == "unread":
                d.ended = "reset"

    @rule(
        group=st.sampled_from([0, 1]),
        topic=st.sampled_from("ab"),
        queue=st.integers(0, 2),
        data=st.data(),
    )
    def commit(self, group: int, topic: str, queue: int, data: st.DataObject) -> None:
        of = self.groups[self.names[group]]
        name = next(n for n in self.topics if n[0] == topic)
        queue %= self.topics[name]
        offset = data.draw(st.integers(0, len(self.puts[name][queue])))
        entries = of.entries[name][queue]
        has_locked = any(e.state == "locked" for e in entries)
        try:
            self.store.commit_offset(of.name, name, queue, offset)
        except InFlight:
            may_be = has_locked or of.ordered or any(e.lock is not None for e in entries)
            assert may_be, "nothing is locked"
        else:
            assert not has_locked, "messages are locked"
            self.goes_on_at(of, name, queue, offset)

    @rule(
        group=st.sampled_from([0, 1]),
        limit=st.sampled_from([None, None, 1, 3]),
        dice=st.integers(0, 1),
    )
    def redrive(self, group: int, limit: int | None, dice: int) -> None:
        of = self.groups[self.names[group]]
        # A redrive sends what is due after its last attempt to the dead letters first.
        if dice or not of.letters or any(self.may_die(of, e) for e in of.all()):
            return
        took = self.store.redrive(of.name, limit)
        assert took <= (limit or took)
        for e in of.letters[:took]:
            if e.state == "done" and not self.has_expired(e.put):
                e.attempts, e.reason = 0, ""
                if of.ordered:
                    e.state, e.is_redriven = "unread", True
                else:
                    # Due by the clock of now: one that is set back lets it wait until then again.
                    e.state, e.lock = "locked", Delivery("", e, 0, self.now, None)
        del of.letters[:took]
        self.learn_what_was_put_back()
        of.had_no_order = True

    def may_die(self, group: Group, e: Entry) -> bool:
        return e.lock is not None and e.lock.due <= self.now and e.attempts >= group.max_attempts

    def learn_what_was_put_back(self) -> None:
        """Learns the copies of messages that had expired, or whose topic was made anew."""
        for topic, queues in self.puts.items():
            for queue, puts in enumerate(queues):
                for offset in range(len(puts), self.store.bounds(topic, queue).next_offset):
                    m = self.store.get(topic, queue, offset)
                    assert m.expires_at is None
                    self.learn(topic, m)

    @rule(
        group=st.sampled_from([0, 1]),
        change=st.sampled_from(
            [{"max_in_flight": None}, {"max_in_flight": 2}, {"max_in_flight": 4},
             {"ordered": True}, {"ordered": False}, {"max_attempts": 2}, {"max_attempts": 16},
             {"backoff": ()}, {"backoff": (2.0, 20.0)}, {"dead_letter_expired": True}]
        ),
        dice=st.integers(0, 2),
    )  # fmt: skip
    def alter(self, group: int, change: dict[str, Any], dice: int) -> None:
        if dice:
            return
        of = self.groups[self.names[group]]
        self.store.alter_group(of.name, **change)
        for name, value in change.items():
            setattr(of, name, value)
        of.had_no_order = of.had_no_order or not of.ordered

    # --- the store, topics and groups ---

    @precondition(lambda self: self.restarts < 2)
    @rule(kills=st.booleans(), dice=st.integers(0, 2))
    def restart(self, kills: bool, dice: int) -> None:
        if dice:
            return
        self.restarts += 1
        self.opening += 1
        cls = Pops
        path = cls.store.path
        if kills:
            assert cls.folder is not None
            path = killed(cls.store, cls.folder / str(int(path.name) + 1))
        cls.store.close()
        cls.store = kvstore.open(path, config=cls.config)

    @precondition(lambda self: self.made_anew < 2)
    @rule(what=st.sampled_from("abgh"), dice=st.integers(0, 2), chosen=GROUP_SETTINGS)
    def make_anew(self, what: str, dice: int, chosen: dict[str, object]) -> None:
        if dice:
            return
        self.made_anew += 1
        if what in GROUPS:
            name = self.names[GROUPS.index(what)]
            self.store.delete_group(name)
            for e in self.groups[name].all():
                self.is_gone(e)
            self.make_group(name, chosen, self.groups[name].dead)
            return
        name = next(n for n in self.topics if n[0] == what)
        self.store.delete_topic(name)
        self.store.create_topic(name, queues=self.topics[name])
        self.puts[name] = [[] for _ in range(self.topics[name])]
        for group in self.groups.values():
            for e in group.of(name):
                self.is_gone(e)
            group.entries[name] = [[] for _ in range(self.topics[name])]

    def is_gone(self, entry: Entry) -> None:
        entry.end("gone", self.opening)
        for d in self.deliveries:
            if d.entry is entry and d.ended not in ("acked", "reset"):
                d.ended = "gone"
            elif d.entry is entry:
                # The facts of a row go with its group or topic, and that it was set back.
                d.ended, d.ended_in = "acked", -1

    # --- what always holds ---

    @invariant()
    def committed_is_the_end_of_what_is_done(self) -> None:
        for group in self.groups.values():
            for topic in group.entries:
                for lag in self.store.lag(group.name, topic):
                    self.check_lag(group, topic, lag)

    @rule(group=st.sampled_from([0, 1]))
    def figures(self, group: int) -> None:
        of = self.groups[self.names[group]]
        for topic in of.entries:
            self.check_figures(of, topic)

    def check_figures(self, group: Group, topic: str) -> None:
        (stats,) = self.store.group_stats(group.name, topic)
        assert stats.lag == sum(lag.lag for lag in self.store.lag(group.name, topic))
        entries = list(group.of(topic))
        locked = [e for e in entries if e.state == "locked" and e.lock is not None]
        maybe = sum(e.state == "maybe" for e in entries)
        due = sum(e.lock is not None and e.lock.due <= self.now for e in locked)
        assert due <= stats.due <= due + maybe
        redelivered = sum(e.attempts > 1 for e in locked)
        assert redelivered <= stats.redelivered <= redelivered + maybe
        first = min((e.lock.due for e in locked if e.lock is not None), default=None)
        if not maybe:
            assert stats.oldest_due == first

    def check_lag(self, group: Group, topic: str, lag: kvstore.Lag) -> None:
        entries = group.entries[topic][lag.queue]
        assert (lag.begin, lag.end) == (0, len(entries))
        assert lag.lag == lag.unread + lag.in_flight
        certain = sum(e.state in ("unread", "locked") for e in entries)
        assert certain <= lag.lag <= certain + sum(e.state == "maybe" for e in entries)
        locked = sum(e.state == "locked" for e in entries)
        perhaps = sum(e.state == "maybe" or e.is_redriven for e in entries)
        assert locked <= lag.in_flight <= locked + perhaps
        if lag.committed is None:
            for e in entries:
                assert e.lock is None
                assert e.state in ("unread", "maybe")
                e.state = "unread"
            return
        for e in entries[: lag.committed]:
            assert e.state in ("done", "maybe"), "committed, but not done"
            e.end("passed", self.opening)
        if lag.committed < len(entries):
            e = entries[lag.committed]
            assert e.state != "done", "done, but not committed"
            if e.state == "maybe":
                e.state = "unread" if e.lock is None else "locked"

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:
            self.drain()
            for name in self.names:
                self.store.delete_group(name)
            self.store.delete_topics(self.topics)

    def drain(self) -> None:
        """Everything is delivered, or a dead letter, and acked in the end."""
        for group in self.groups.values():
            for _ in range(200):
                if all(e.state == "done" for e in group.all()):
                    break
                for topic in group.entries:
                    self.pop_as(group, Asked(topic, 40, None, 1.0, None, None, None))
                for d in self.deliveries:
                    if not d.ended and d.entry.state == "locked" and d.entry in set(group.all()):
                        self.acked(d, self.store.ack_batch([d.receipt])[0])
                self.committed_is_the_end_of_what_is_done()
                self.clock.advance(3600)
            assert all(e.state == "done" for e in group.all())
            for lag in (
                each for topic in group.entries for each in self.store.lag(group.name, topic)
            ):
                assert lag.lag == 0


@dataclass(frozen=True)
class Asked:
    """The arguments of a pop."""

    topic: str
    limit: int
    queue: int | None
    invisible_for: float
    wanted: str | None
    attempt_id: str | None
    max_bytes: int | None


@pytest.fixture(scope="module", autouse=True)
def _store_is_dropped() -> Iterator[None]:
    yield
    Pops.drop_store()


@pytest.fixture(scope="module", autouse=True)
def _goes_both_ways() -> Iterator[None]:
    """The core takes for some pops, and a claim for the others: of both there are many."""
    take, by_core = Claimant.take, list[bool]()

    def noted(asked: Claimant) -> Change | None:
        change = take(asked)
        by_core.append(change is not None)
        return change

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Claimant, "take", noted)
        yield
    assert min(by_core.count(True), by_core.count(False)) > RUNS // 4


Pops.TestCase.settings = settings(
    max_examples=RUNS,
    stateful_step_count=STEPS,
    deadline=None,
    # The same runs each time, unless they are asked for by hand: those look for what is new.
    derandomize="KVMQ_POP_RUNS" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestPopsAreAsTheModelSays = Pops.TestCase
