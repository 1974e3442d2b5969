"""Clients of a server that is too busy come back behind growing pauses, and give up in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import kvstore
import kvstore.aio
from kvstore import ConnectionLost, NotAuthenticated, Store, StoreBusy
from kvstore.client.reconnecting import Reconnecting
from kvstore.serve import local_connection
from kvstore.serve.replies import reply_room
from tests.support.clock import VirtualClock
from tests.support.served import serving

FOR = 30.0
BUSY = StoreBusy("try later")
GONE = ConnectionLost("nobody is there")


@pytest.fixture
def reconnecting(clock: VirtualClock) -> Reconnecting:
    """Of a client whose connection has just been made."""
    made = Reconnecting(FOR, clock.monotonic)
    made.made(0)
    return made


def pauses(
    reconnecting: Reconnecting, clock: VirtualClock, count: int, why: Exception | None = None
) -> list[float]:
    """The pauses before trials, each of which brings a connection that is lost for a reason, or
    none if there is no reason.
    """
    found = []
    for _ in range(count):
        assert reconnecting.begin() is None
        found.append(reconnecting.pause())
        clock.advance(found[-1])
        if why is None:
            assert not reconnecting.is_over(GONE)
        else:
            reconnecting.made(0)
            reconnecting.lost(why, 0)
    return found


def assert_growing(found: list[float]) -> None:
    whole = [min(0.05 * 2**n, 1.0) for n in range(len(found))]
    assert all(full / 2 <= one <= full for one, full in zip(found, whole, strict=True)), found


def test_the_first_trial_is_made_at_once_and_the_others_behind_growing_pauses(
    reconnecting: Reconnecting, clock: VirtualClock
) -> None:
    reconnecting.lost(None, 5)
    first, *others = pauses(reconnecting, clock, 12)
    assert first == 0
    assert_growing(others)
    assert len(set(others[6:])) > 1, "clients do not come all together"


@pytest.mark.parametrize("why", [BUSY, OSError()])
def test_a_server_that_takes_connections_and_ends_them_gets_growing_pauses_too(
    reconnecting: Reconnecting, clock: VirtualClock, why: Exception
) -> None:
    reconnecting.lost(why, 0)
    found = pauses(reconnecting, clock, 9, why)
    assert_growing(found if why is BUSY else found[1:])


def test_pauses_begin_anew_when_a_connection_was_of_use(
    reconnecting: Reconnecting, clock: VirtualClock
) -> None:
    reconnecting.lost(None, 0)
    pauses(reconnecting, clock, 5)
    reconnecting.made(7)
    reconnecting.lost(None, 8)
    assert pauses(reconnecting, clock, 1) == [0]


def test_a_busy_server_that_answered_a_little_gets_longer_pauses_until_it_holds_a_connection(
    reconnecting: Reconnecting, clock: VirtualClock
) -> None:
    received = 0
    found = []
    for _ in range(6):
        reconnecting.lost(BUSY, received)
        found += pauses(reconnecting, clock, 1)
        reconnecting.made(received)
        received += 3
    assert_growing(found)
    reconnecting.lost(OSError(), received)
    assert pauses(reconnecting, clock, 1)[0] >= 0.5
    reconnecting.made(received)
    clock.advance(10)
    reconnecting.lost(BUSY, received)
    assert_growing(pauses(reconnecting, clock, 1))


def test_trials_end_when_the_time_is_over_and_at_once_where_they_are_of_no_use(
    reconnecting: Reconnecting, clock: VirtualClock
) -> None:
    reconnecting.lost(None, 1)
    assert reconnecting.begin() is None
    assert not reconnecting.is_over(BUSY)
    began = clock.monotonic()
    while clock.monotonic() - began < FOR:
        assert not reconnecting.is_over(GONE)
        clock.advance(reconnecting.pause())
    assert clock.monotonic() - began == pytest.approx(FOR)
    assert reconnecting.is_over(BUSY)
    assert reconnecting.begin() is None
    assert reconnecting.is_over(NotAuthenticated("no"))
    for _ in range(2):
        reconnecting.lost(BUSY, 1)
        assert reconnecting.begin() is None
        reconnecting.pause()
        reconnecting.made(1)
        reconnecting.lost(BUSY, 1)
        clock.advance(FOR - 1)
        assert reconnecting.begin() is None
        reconnecting.pause()
        clock.advance(1)
        assert reconnecting.begin() is BUSY


def by_threads(url: str) -> None:
    with kvstore.connect(url, reconnect_for=2.0) as client:
        client.topics()


def by_shards(url: str) -> None:
    with kvstore.connect([url], reconnect_for=2.0) as client:
        client.topics()


def by_asyncio(url: str) -> None:
    async def call() -> None:
        async with kvstore.aio.connect(url, reconnect_for=2.0) as client:
            await client.topics()

    asyncio.run(call())


@pytest.mark.parametrize("call", [by_threads, by_shards, by_asyncio])
@pytest.mark.parametrize("refusal", ["of replies", "of connections"])
def test_a_client_of_a_busy_server_waits_longer_each_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: Callable[[str], None], refusal: str
) -> None:
    found = list[float]()
    pause = Reconnecting.pause

    def noted(reconnecting: Reconnecting) -> float:
        found.append(pause(reconnecting))
        return found[-1]

    def lost(*given: Any) -> None:
        monkeypatch.setattr(local_connection, "CONNECTIONS_MAX", 0)
        note_loss(*given)

    note_loss = Reconnecting.lost
    monkeypatch.setattr(Reconnecting, "pause", noted)
    monkeypatch.setattr(reply_room, "HELD_MAX", 0)
    if refusal == "of connections":
        monkeypatch.setattr(Reconnecting, "lost", lost)
    # A connection that is refused at once may break before asyncio has read why.
    errors = StoreBusy if refusal == "of replies" else (StoreBusy, ConnectionLost)
    with serving(store) as server, pytest.raises(errors):
        call(server.url)
    assert_growing(found[:-1])  # the last one ends with the time
    assert 2 < len(found) < 10  # how long a trial takes is up to the machine
