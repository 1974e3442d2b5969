"""The figures of `lag` and `group_stats`, also when retention took messages away."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import kvstore
import tiering
from kvstore import Message, ReceiptExpired, Retention, Store, StoreConfig
from kvstore.cli import kvmq
from tests.pop.test_costs import locks_read
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import killed

DAY = 24 * 3600


def small(clock: VirtualClock) -> StoreConfig:
    return StoreConfig(segment_size=1 << 16, retention=Retention(hot_for=DAY), clock=clock)


def lags(store: Store) -> tuple[int, int]:
    """As the two calls say."""
    (stats,) = store.group_stats("g", "t")
    assert stats.lag == stats.unread + stats.in_flight
    assert stats.taken + stats.unread <= stats.end or stats.taken == stats.end
    return sum(one.lag for one in store.lag("g", "t")), stats.lag


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("count", [1, 200])
def test_what_retention_took_away_is_in_nobodys_lag(
    tmp_path: Path, ordered: bool, count: int
) -> None:
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", small(clock)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", ordered=ordered)
        messages = [Message("t", b"x" * 100, message_group="one") for _ in range(300)]
        store.put_batch(messages)
        store.pop("g", "t", limit=count, invisible_for=30 * DAY)
        assert lags(store) == (300, 300)
        store.seal()
        store.put("t", b"x")
        clock.advance(2 * DAY)
        clock.set_hour(4)
        store.apply_retention()
        assert store.bounds("t", 0) == (300, 301)
        assert lags(store) == (1, 1)
        (stats,) = store.group_stats("g", "t")
        assert (stats.unread, stats.in_flight, stats.redelivered, stats.oldest_due) == (
            1,
            0,
            0,
            None,
        )


def segments_of(store: Store, count: int, messages: int) -> None:
    """Puts so many messages into each of some segments."""
    for _ in range(count):
        store.put_batch([Message("t", b"x", queue=n % 2) for n in range(messages)])
        store.seal()


def test_after_retention_took_locked_messages_figures_read_all_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    for size in (4, 40, 400):
        clock = VirtualClock()
        with kvstore.open(tmp_path / str(size), small(clock)) as store:
            store.create_topic("t", queues=2)
            store.create_group("g")
            segments_of(store, 1, 6)
            store.put_batch([Message("t", b"x") for _ in range(size)])
            for _ in range(size + 6):
                assert len(store.pop("g", "t", invisible_for=30 * DAY)) == 1
                clock.advance(0.3)
            clock.advance(2 * DAY)
            clock.set_hour(4)
            store.apply_retention()
            first = store.group_stats("g", "t")
            assert first[0].in_flight == size
            with locks_read(store, monkeypatch) as seen:
                assert store.group_stats("g", "t") == first
                read.append(seen())
    assert read[0] == read[1] == read[2] <= 2


@pytest.mark.parametrize("seed", range(6))
def test_figures_are_those_of_the_rows_whatever_retention_took(tmp_path: Path, seed: int) -> None:
    """A reader that looks for the first time reads all rows."""
    random, clock = Random(seed), VirtualClock()
    with kvstore.open(tmp_path / "s", small(clock)) as store:
        inside.stop_housekeepers(store)
        store.create_topic("t", queues=2)
        store.create_group("g", max_attempts=9)
        receipts: list[str] = []
        for _ in range(40):
            match random.randrange(7):
                case 0:
                    segments_of(store, 1, random.randrange(1, 30))
                case 1:
                    clock.advance(random.choice((0.01, 1, DAY / 3)))
                    clock.set_hour(4)
                    store.apply_retention()
                case 2:
                    for receipt in random.sample(receipts, min(len(receipts), 3)):
                        with suppress(ReceiptExpired):
                            receipts.append(
                                store.change_invisible(receipt, random.choice((1, DAY)))
                            )
                case 3:
                    receipts += [p.receipt for p in store.pop("g", "t", 9, invisible_for=2 * DAY)]
                case 4:
                    store.ack_batch(random.sample(receipts, min(len(receipts), 4)))
                case _:
                    for limit in (1, 3):
                        lasts = random.choice((0.05, 30, DAY))
                        popped = store.pop("g", "t", limit, invisible_for=lasts)
                        receipts += [p.receipt for p in popped]
            with kvstore.open(store.path, small(clock), read_only=True) as reader:
                assert store.group_stats("g", "t") == reader.group_stats("g", "t")


def test_a_group_that_starts_at_the_end_lags_by_what_came_since(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", small(VirtualClock())) as store:
        store.create_topic("t", queues=1)
        store.put_batch([Message("t", b"old") for _ in range(5)])
        store.create_group("g", start="end")
        assert lags(store) == (0, 0)
        store.put_batch([Message("t", b"new") for _ in range(3)])
        assert lags(store) == (3, 3)


def command(*words: object) -> Any:
    ran = CliRunner().invoke(kvmq, [*map(str, words), "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def assert_all_say(store: Store, lag: int, passed: int = 0) -> None:
    """Each call and each verb that says how much a group has still to do, or was passed over."""
    folder = store.path
    assert lags(store) == (lag, lag)
    (stats,) = store.group_stats("g", "t")
    of_queues = store.lag("g", "t")
    (of_top,) = (g for g in command("top", folder, "--once", "--interval", 0.05)["groups"]
                 if g["topic"] == "t")  # fmt: skip
    shown = command("group", "show", folder, "g")["topics"]
    assert [one["lag"] for one in shown if one["topic"] == "t"] == [lag]
    by_verb = command("offset", "lag", folder, "g", "t")
    assert sum(one["lag"] for one in by_verb) == lag
    assert sum(one["lag"] for one in command("offset", "show", folder, "g", "t")) == lag
    assert of_top["lag"] == lag
    said = (
        stats.passed_over,
        of_top["passed_over"],
        sum(one.passed_over for one in of_queues),
        sum(one["passed_over"] for one in by_verb),
    )
    assert said == (passed,) * 4


def test_after_a_redrive_all_say_how_much_is_still_to_be_done(tmp_path: Path) -> None:
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", small(clock)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", max_attempts=1)
        store.put_batch([Message("t", b"x") for _ in range(100)])
        popped = store.pop("g", "t", 100, 30.0)
        store.ack_batch([p.receipt for p in popped if p.message.offset % 25])
        assert_all_say(store, 4)
        clock.advance(60)
        assert store.pop("g", "t") == []
        assert_all_say(store, 0)
        assert store.redrive("g") == 4
        assert store.committed_offset("g", "t", 0) == 0
        assert_all_say(store, 4)
        assert len(store.pop("g", "t", 3)) == 3
        assert_all_say(store, 4)


def test_parked_messages_are_still_to_be_done(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", small(VirtualClock())) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", ordered=True)
        store.put_batch([Message("t", b"x", message_group=f"m{n % 2}") for n in range(10)])
        popped = store.pop("g", "t", 10)
        assert len(popped) == 2
        assert_all_say(store, 10)
        store.ack(popped[1].receipt)
        assert_all_say(store, 9)


@pytest.mark.parametrize("ordered", [False, True])
def test_what_filters_refuse_is_counted_until_the_offset_is_set(
    tmp_path: Path, ordered: bool
) -> None:
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", small(clock)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", ordered=ordered)
        tags = "abbabbab"
        store.put_batch([Message("t", b"x", tag=tag, message_group="m") for tag in tags])
        done = 0
        while popped := store.pop("g", "t", 8, filter="a"):
            store.ack_batch([p.receipt for p in popped])
            done += len(popped)
        assert done == 3
        assert_all_say(store, 0, 5)
        store.put_batch([Message("t", b"x", tag="b", message_group="m") for _ in range(3)])
        # A message that was locked first, and is refused when it is due, is passed over as well.
        first, *_ = store.pop("g", "t", 1, 1.0)
        assert_all_say(store, 3, 5)
        clock.advance(2)
        assert store.pop("g", "t", 8, filter="a") == []
        assert_all_say(store, 0, 8)
        del first
        # And the short way, and commits of other queues, leave the count as it is.
        store.put_batch([Message("t", b"x", message_group="m") for _ in range(4)])
        for _ in range(4):
            store.ack(store.pop("g", "t")[0].receipt)
        assert_all_say(store, 0, 8)
    with kvstore.open(tmp_path / "s", small(clock)) as store:
        assert_all_say(store, 0, 8)
        store.put("t", b"x", tag="b")
        assert store.pop("g", "t", filter="a") == []
        assert_all_say(store, 0, 9)
        store.reset_offset("g", "t", offset=6, queue=0)
        assert_all_say(store, 10)
        store.reset_offset("g", "t", to="end")
        store.commit_offset("g", "t", 0, 15)
        assert_all_say(store, 1)


@pytest.mark.parametrize("how", ["commit", "reset"])
def test_what_filters_refuse_is_counted_anew_once_the_offset_was_set(
    tmp_path: Path, how: str
) -> None:
    with kvstore.open(tmp_path / "s", small(VirtualClock())) as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        store.put_batch([Message("t", b"x", tag="b") for _ in range(5)])
        assert store.pop("g", "t", 8, filter="a") == []
        assert_all_say(store, 0, 5)
        if how == "commit":
            store.commit_offset("g", "t", 0, 2)
        else:
            store.reset_offset("g", "t", offset=2, queue=0)
        assert_all_say(store, 3)
        assert store.pop("g", "t", 8, filter="a") == []
        assert_all_say(store, 0, 3)


def test_a_filter_that_waits_for_room_counts_each_message_once(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", small(VirtualClock())) as store:
        store.create_topic("t", queues=1)
        store.create_group("g", max_in_flight=1)
        store.put_batch([Message("t", b"x" * 100, tag=tag) for tag in "bbabba"])
        (first,) = store.pop("g", "t", 4, filter="a", max_bytes=1)
        for _ in range(3):
            assert store.pop("g", "t", 4, filter="a") == []
        store.ack(first.receipt)
        assert len(store.pop("g", "t", 4, filter="a")) == 1
        assert_all_say(store, 1, 4)


def test_a_reader_beside_a_store_that_ended_unclean_says_what_the_store_says(
    tmp_path: Path,
) -> None:
    """Older rows are cut for the look, without being written."""
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", small(clock)) as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        store.put_batch([Message("t", b"x") for _ in range(5)])
        store.pop("g", "t", 5, 30.0)
        path = killed(store, tmp_path / "k")
    with kvstore.open(path, small(clock)):
        pass  # it notes the unclean end, and reads no row
    with kvstore.open(path, small(clock), read_only=True) as reader:
        assert lags(reader) == (5, 5)
        assert reader.committed_offset("g", "t", 0) == 0


def test_the_age_of_what_is_still_to_be_done_is_told_without_a_look_at_archives(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    with kvstore.open(tmp_path / "s", small(clock)) as store:
        store.create_topic("t", queues=2)
        store.create_group("g")
        assert store.group_stats("g", "t")[0].oldest_at is None
        begun = clock.now_ms()
        store.put_batch([Message("t", b"x", queue=queue) for queue in (0, 0, 1)])
        store.seal()
        clock.advance(10)
        policy = tiering.Policy(hot_for=1, warm=str(tmp_path / "archive"))
        with tiering.Worker(store, policy) as worker:
            assert worker.run_once().segments
        clock.advance(100)
        put_at = clock.now_ms()
        store.put("t", b"new", queue=0)
        shutil.rmtree(tmp_path / "archive")
        assert store.group_stats("g", "t")[0].oldest_at == begun
        store.commit_offsets([("g", "t", 0, 2), ("g", "t", 1, 1)])
        assert store.group_stats("g", "t")[0].oldest_at == put_at
        store.commit_offsets([("g", "t", 0, 3)])
        assert store.group_stats("g", "t")[0].oldest_at is None
