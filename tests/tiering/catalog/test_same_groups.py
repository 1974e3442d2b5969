"""A group's life is the same whatever is in which tier: the same calls, the same answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
import kvstore.index.archived
from kvstore import Message, Store, StoredMessage, TopicConfig, sql
from tests.support.clock import VirtualClock
from tests.tiering.catalog.moving import answers, config, hand_over, merge, sealed, tiers

TOPICS = [
    TopicConfig(name="plain", queues=2),
    TopicConfig(name="urgent", queues=2, kind="priority"),
    TopicConfig(name="latest", queues=2, kind="compacted"),
    TopicConfig(name="again", queues=2),
]
FILTER = "color = 'red' AND n > 10"


def filled(path: Path, clock: VirtualClock) -> Store:
    """Topics of each kind in three sealed segments, one of them deleted and made again between."""
    store = kvstore.open(path, config(clock))
    store.create_topics(TOPICS)
    for n in range(60):
        for name in ("plain", "urgent", "latest", "again"):
            message = Message(
                name, b"%d " % n * (n % 9), queue=n // 2 % 2, tag="ab"[n % 2],
                keys=(f"k{n % 7}", "all"), message_group=f"m{n % 5}",
                properties={"n": str(n), "color": ("red", "blue")[n % 3 == 0]},
            )  # fmt: skip
            store.put_batch([message])
            clock.advance(0.25)
        if n == 25:
            store.delete_topic("again")
            store.create_topic("again", queues=2)
        if n % 20 == 19:
            store.seal()
    store.create_group("plain", max_attempts=2)
    store.create_group("ordered", ordered=True, max_attempts=2)
    for group in ("plain", "ordered"):
        # Under lock, and partly given up on, when segments leave the log.
        store.pop(group, "plain", limit=6, invisible_for=3.0)
    return store


def rounds(
    store: Store, clock: VirtualClock, group: str, topic: str, most: int, **asked: Any
) -> list[Any]:
    """Pops, of which some are acked, some given back, and some forgotten."""
    out: list[Any] = []
    for turn in range(most):
        found = store.pop(group, topic, limit=3 + turn % 4, invisible_for=2.0, **asked)
        out.append([(p.message, p.attempt, p.due_at) for p in found])
        done = [p for i, p in enumerate(found) if (i + turn) % 4]
        left = [p for i, p in enumerate(found) if not (i + turn) % 4]
        store.ack_batch([p.receipt for p in done])
        if left and turn % 2:
            store.change_invisible(left[0].receipt, 0)
        clock.advance(0.7)
    return out


def life(store: Store, clock: VirtualClock, between: Callable[[], None]) -> list[Any]:
    """All that groups are told, with what happens to segments and archives `between` the calls."""
    start = store.get("plain", 0, 10).stored_at
    out: list[Any] = []
    for group in ("plain", "ordered"):
        out.append(rounds(store, clock, group, "plain", 6))
        between()
        clock.advance(10)
        out.append(rounds(store, clock, group, "plain", 6))
        clock.advance(10)
        out.append(rounds(store, clock, group, "plain", 3))
        out.append(store.group_stats(group))
        out.append(store.redrive(group, limit=3))
        out.append(rounds(store, clock, group, "plain", 4))
        out.append(store.redrive(group))
        between()
        out.append(store.reset_offset(group, "plain", time=start + 1))
        out.append(rounds(store, clock, group, "plain", 4, filter=sql(FILTER)))
        out.append(store.reset_offset(group, "plain", offset=3, queue=1))
        out.append(rounds(store, clock, group, "plain", 3, queue=1, filter="b"))
        out.append(store.lag(group))
        out += [rounds(store, clock, group, topic, 6) for topic in ("urgent", "latest", "again")]
    store.create_group("late", start=start + 3)
    out.append(rounds(store, clock, "late", "plain", 2))
    out.append(rounds(store, clock, "late", "again", 2, max_bytes=400))
    again = store.pop("late", "plain", limit=4, attempt_id="one")
    between()
    more = store.pop("late", "plain", limit=4, attempt_id="one")
    out.append([(p.message, p.attempt) for p in again] == [(p.message, p.attempt) for p in more])
    out.append([p.message for p in again])
    # Dead letters have ids of their own each time.
    out.append({k: v for k, v in answers(store).items() if not _is_copy(k, v)})
    return out


def _is_copy(asked: Any, answer: Any) -> bool:
    topic = answer.topic if isinstance(answer, StoredMessage) else str(asked[0])
    return topic.startswith("%DLQ%")


@pytest.mark.parametrize("fetched", [kvstore.index.archived._FETCHED_MAX, 1])
def test_groups_of_all_kinds_live_as_if_nothing_had_moved_however_little_a_call_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: int
) -> None:
    monkeypatch.setattr(kvstore.index.archived, "_FETCHED_MAX", fetched)
    clock = VirtualClock()
    begun = clock.now_ms()
    with filled(tmp_path / "a", clock):
        pass
    spent = (clock.now_ms() - begun) / 1000
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = []
    for name in ("a", "b"):
        clock = VirtualClock()
        clock.advance(spent)
        with kvstore.open(tmp_path / name, config(clock)) as store:

            def between(store: Store = store, is_moved: bool = name == "b") -> None:
                store.seal()
                if not is_moved:
                    return
                hand_over(store, sealed(store)[:2])
                rows = tiers(store).rows()
                if len(rows) > 2:
                    merge(store, [row.number for row in rows])

            found.append(life(store, clock, between))
            assert (len(tiers(store).rows()) > 0) == (name == "b")
    for a, b in zip(*found, strict=True):
        assert a == b
