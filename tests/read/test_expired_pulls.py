"""Pulls pass over messages that have expired; other reads show them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvstore
from kvstore import Message, PullStatus, Store, StoreConfig
from kvstore.read import reader
from tests.support.clock import START_MS, VirtualClock
from tests.support.costs import Costs
from tests.support.stores import Opens
from tests.support.stores import settings as settings_of

PAST = START_MS - 1
SOON = START_MS + 5000


@pytest.fixture
def config(clock: VirtualClock) -> StoreConfig:
    return settings_of(clock=clock)


@pytest.fixture
def store(opens: Opens, config: StoreConfig) -> Store:
    store = opens(config)
    store.create_topic("t", queues=1)
    return store


def put(store: Store, times: list[int | None], topic: str = "t") -> None:
    """Messages that expire at these times."""
    store.put_batch(
        [
            Message(topic, b"%d" % n, 0, "ab"[n % 2], keys=["k"], expires_at=time)
            for n, time in enumerate(times)
        ]
    )


def figures(result: Any) -> tuple[Any, ...]:
    return result.next_offset, result.expired, result.status


def test_a_pull_passes_over_what_has_expired_and_counts_it(store: Store) -> None:
    put(store, [PAST, None, SOON, PAST, PAST])
    found = store.pull("t", 0, 0)
    assert [m.body for m in found.messages] == [b"1", b"2"]
    assert [m.expires_at for m in found.messages] == [None, SOON]
    assert figures(found) == (5, 3, PullStatus.FOUND)
    assert figures(store.pull("t", 0, 3)) == (5, 2, PullStatus.NO_MATCHED_MESSAGE)
    assert figures(store.pull("t", 0, 5)) == (5, 0, PullStatus.OFFSET_OVERFLOW_ONE)
    columns = store.pull_columns("t", 0, 0, columns=["offset", "expires_at"])
    assert figures(columns) == (5, 3, PullStatus.FOUND)
    rows = pa.record_batch(columns.columns).to_pylist()
    assert rows == [{"offset": 1, "expires_at": None}, {"offset": 2, "expires_at": SOON}]


def test_a_message_expires_at_its_millisecond_and_not_before(
    store: Store, clock: VirtualClock
) -> None:
    put(store, [SOON])
    clock.advance(4.999)
    assert len(store.pull("t", 0, 0).messages) == 1
    clock.advance(0.001)
    assert store.pull("t", 0, 0).messages == []
    clock.step(-1)
    assert len(store.pull("t", 0, 0).messages) == 1


def test_what_has_expired_is_still_found_by_every_other_read(store: Store) -> None:
    put(store, [PAST])
    message = store.get("t", 0, 0)
    assert (message.body, message.expires_at) == (b"0", PAST)
    assert message.user_properties == {}
    assert store.read_at(message.position) == message
    assert store.find(message.message_id) == message
    assert store.query("t", "k") == [message]
    assert store.offset_at("t", 0, message.stored_at) == 0


@pytest.mark.parametrize("asked", [{}, {"filter": "a || b"}, {"max_bytes": 1000}])
def test_thousands_of_expired_messages_do_not_make_one_pull_long(
    store: Store, asked: dict[str, Any]
) -> None:
    put(store, [PAST] * 3000 + [None])
    at, looks, expired = 0, 0, 0
    while not (found := store.pull("t", 0, at, **asked)).messages:
        assert at < found.next_offset <= at + 832
        assert found.status is PullStatus.NO_MATCHED_MESSAGE
        at, looks, expired = found.next_offset, looks + 1, expired + found.expired
    assert looks == 3
    assert expired + found.expired == 3000
    found = store.pull("t", 0, 0, limit=4000, **asked)
    assert (len(found.messages), found.expired) == (1, 3000)


def test_a_pull_does_as_many_operations_for_any_number_of_expired_messages(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs, done = Costs(monkeypatch), []
    for size in (10, 100, 1000):
        store.create_topic(f"t{size}", queues=1)
        put(store, [PAST] * size + [None], f"t{size}")
        with costs.counting() as counts:
            assert len(store.pull(f"t{size}", 0, 0, limit=1000).messages) == 1
        done.append(sum(counts.values()))
    assert done[0] == done[1] == done[2]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(st.sampled_from([None, PAST, PAST, SOON]), min_size=1, max_size=60),
    limit=st.integers(1, 20),
    max_bytes=st.none() | st.integers(1, 1500),
    wanted=st.sampled_from([None, "a", "a || b"]),
    checkpoints=st.booleans(),
    data=st.data(),
)
def test_pulling_on_gives_each_message_that_has_not_expired_and_counts_the_others_once(
    store: Store,
    times: list[int | None],
    limit: int,
    max_bytes: int | None,
    wanted: str | None,
    checkpoints: bool,
    data: st.DataObject,
) -> None:
    topic = f"t{store.stats().topics}"
    store.create_topic(topic, queues=1)
    put(store, times, topic)
    if checkpoints:
        store.checkpoint()
    asked: dict[str, Any] = {"limit": limit, "max_bytes": max_bytes, "filter": wanted}
    first = at = data.draw(st.integers(0, len(times) - 1))
    offsets: list[int] = []
    expired = 0
    while at < len(times):
        found = store.pull(topic, 0, at, **asked)
        columns = store.pull_columns(topic, 0, at, columns=["offset"], **asked)
        mine = [m.offset for m in found.messages]
        assert pa.record_batch(columns.columns).column(0).to_pylist() == mine
        assert figures(columns) == figures(found)
        assert len(mine) <= limit
        assert found.next_offset > at
        assert all(at <= offset < found.next_offset for offset in mine)
        gone = sum(times[n] == PAST for n in range(at, found.next_offset))
        assert found.expired == gone
        offsets, expired, at = offsets + mine, expired + gone, found.next_offset
    lives = [n for n in range(first, len(times)) if times[n] != PAST]
    assert offsets == [n for n in lives if wanted != "a" or n % 2 == 0]
    assert expired == len(times) - first - len(lives)


def test_a_message_that_never_expires_is_as_before(store: Store) -> None:
    put(store, [None])
    assert store.get("t", 0, 0).raw_properties.startswith(b"UNIQ_KEY\x01")
    put(store, [SOON])
    raw = store.get("t", 0, 1).raw_properties
    assert raw.startswith(b"__EXPIRES_AT\x01%d\x02UNIQ_KEY\x01" % SOON)


def test_asyncio_and_a_namespace_pass_over_what_has_expired(store: Store) -> None:
    view = store.namespace("mine")
    view.create_topic("t", queues=1)
    view.create_group("g", dead_letter_expired=True)
    view.put("t", b"0", expires_at=PAST)
    view.put("t", b"1", expires_at=SOON)
    assert figures(view.pull("t", 0, 0)) == (2, 1, PullStatus.FOUND)
    (popped,) = view.pop("g", "t")
    assert popped.message.expires_at == SOON
    (letter,) = view.pull("%DLQ%g", 0, 0).messages
    assert letter.properties["DLQ_REASON"] == "expired"
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "t"
    assert view.group_stats("g", "t")[0].expired == 1
    assert str(Store.put.__doc__) in str(kvstore.aio.Store.put.__doc__)


@pytest.mark.parametrize("times", [[None] * 90, [None, SOON, PAST] * 30, [None] * 60 + [PAST] * 30])
def test_many_messages_are_read_in_parts_as_they_are_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, times: list[int | None]
) -> None:
    def found() -> list[object]:
        pulls: list[object] = []
        for offset in (0, 1, 40, 88):
            for limit in (1, 7, 50, 90, 200):
                for most in (None, 1, 500, 3000, 7000, 1 << 20):
                    given = ("t", 0, offset, limit)
                    pulled = store.pull(*given, max_bytes=most)
                    columns = store.pull_columns(*given, max_bytes=most, columns=["offset"])
                    rows = pa.record_batch(columns.columns).to_pylist()
                    pulls.append((pulled, figures(columns), rows))
        return pulls

    put(store, times)
    at_once = found()
    monkeypatch.setattr(reader, "_FIRST_PART", 2)
    for size in (1, 400, 1000):
        monkeypatch.setattr(reader, "_PART_BYTES", size)
        assert found() == at_once
