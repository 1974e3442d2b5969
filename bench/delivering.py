"""Delayed messages on their way: delivered beside puts and pops, many at once, cancelled.

The idea: the queue's end counts the deliveries. Puts and pops beside them are measured in turns,
with messages due, and without before and after that: a store is not as fast at its end as at its
beginning.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Final

import kvstore
from bench.delays import put_waiting
from bench.figure import Figure, Options
from kvstore import Message, Store
from kvstore.cli.trial.measure import Load, create_topics, messages, topic_of

_TOPIC: Final = "reminders"
_GROUP: Final = "workers"
_RATE: Final = 110_000
"""Messages due in a second."""
_TURNS: Final = 4
_TURN_S: Final = 1.5
_HOUR_MS: Final = 3_600_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _delivered(store: Store) -> int:
    return store.bounds(_TOPIC, 0).next_offset


def _wait_until(when_ms: int) -> None:
    while (left := when_ms - _now_ms()) > 0:
        time.sleep(left / 1000)


def run_beside(folder: Path, options: Options) -> list[Figure]:
    """110,000 messages due a second, delivered while one thread puts and pops batches of 32."""
    turns = [_turn(folder / str(n), options.messages) for n in range(_TURNS)]
    quiet, beside, rate, cost, own = (median(turn[i] for turn in turns) for i in range(5))
    return [
        Figure("delivered a second, with puts and pops beside it", rate, "msg/s", 100_000),
        Figure("a delivery, with all that the store's threads do", cost, "us of processor time",
               better="lower"),
        Figure("put(32), pop(32) and ack beside 110,000 deliveries a second", 100 * beside / quiet,
               "%", 80, note=f"{quiet:,.0f} msg/s without"),
        Figure("the same, by the processor time of their thread", 100 * own, "%",
               note="other programs change it little"),
    ]  # fmt: skip


def _turn(folder: Path, count: int | None) -> tuple[float, ...]:
    """The messages put, popped and acked a second without deliveries, and with them; the messages
    delivered a second then; the processor's µs for each of these; and the processor time of a
    message that is put, popped and acked without deliveries, divided by that with them.
    """
    wanted = count or int(_RATE * _TURN_S)
    seconds = wanted / _RATE
    load = Load(messages=32 * 256, topics=1)
    batches = [list(messages(load))[at : at + 32] for at in range(0, load.messages, 32)]
    with kvstore.open(folder) as store:
        create_topics(store, load)
        store.create_topic(_TOPIC, queues=1)
        store.create_group(_GROUP)
        begin = _now_ms() + 1500 + int(6000 * seconds)
        put_waiting(store, wanted, begin, _RATE // 1000)
        store.checkpoint()
        quiet = [_work(store, batches, _now_ms() + int(1000 * seconds))]
        _wait_until(begin)
        spent = time.process_time() - time.thread_time()
        beside, beside_cost = _work(store, batches, begin + int(1000 * seconds))
        delivered = _delivered(store)
        rate = delivered / (_now_ms() - begin) * 1000
        spent = time.process_time() - time.thread_time() - spent
        while _delivered(store) < wanted:
            time.sleep(0.005)
        quiet.append(_work(store, batches, _now_ms() + int(1000 * seconds)))
        alone, alone_cost = (sum(figures) / 2 for figures in zip(*quiet, strict=True))
        return alone, beside, rate, 1e6 * spent / max(1, delivered), alone_cost / beside_cost


def _work(store: Store, batches: list[list[Message]], until: int) -> tuple[float, float]:
    """Puts, pops and acks until a time; messages a second, and seconds of this thread for each."""
    done, begin, spent, topic = 0, time.perf_counter(), time.thread_time(), topic_of(0)
    while True:
        store.put_batch(batches[done // 32 % len(batches)])
        popped = store.pop(_GROUP, topic, limit=32)
        store.ack_batch([one.receipt for one in popped])
        done += len(popped)
        if _now_ms() >= until:
            spent = time.thread_time() - spent
            return done / (time.perf_counter() - begin), spent / done


def run_burst(folder: Path, options: Options) -> list[Figure]:
    """A million messages due within one second: until the last is delivered, in due order."""
    count = options.messages or 1_000_000
    with kvstore.open(folder / "store") as store:
        store.create_topic(_TOPIC, queues=1)
        due = _now_ms() + 2000 + count // 40
        put_waiting(store, count, due, max(1, count // 1000))
        store.checkpoint()
        assert _now_ms() < due, "the messages were due before all of them were put"
        _wait_until(due)
        while _delivered(store) < count:
            time.sleep(0.005)
        seconds = (_now_ms() - due) / 1000
        _check_order(store, count)
    return [
        Figure(f"{count:,} due in one second: all delivered", seconds, "s", 15, "lower"),
        Figure("the same, a second", count / seconds, "msg/s"),
    ]


def _check_order(store: Store, count: int) -> None:
    at = 0
    while at < count:
        for message in store.pull(_TOPIC, queue=0, offset=at, limit=1024).messages:
            assert message.body == b"%016d" % at, f"message {at} is {message.body!r}"
            at += 1


def run_cancel(folder: Path, options: Options) -> list[Figure]:
    """Messages that wait are cancelled, one by one, before a checkpoint and after it."""
    count = options.messages or 100_000
    rates = list[float]()
    with kvstore.open(folder / "store") as store:
        store.create_topic(_TOPIC, queues=1)
        for is_checkpointed in (False, True):
            put = [
                store.put(_TOPIC, b"%016d" % n, deliver_at=_now_ms() + _HOUR_MS)
                for n in range(count // 2)
            ]
            if is_checkpointed:
                store.checkpoint()
            begin = time.thread_time()
            for one in put:
                assert store.cancel(one.message_id)
            rates.append(len(put) / (time.thread_time() - begin))
        assert store.timers(_TOPIC).count == 0
    unit = "/s of processor time"
    return [
        Figure("cancelled, put a moment ago", rates[0], unit, 50_000),
        Figure("cancelled, of rows", rates[1], unit, 50_000),
    ]
