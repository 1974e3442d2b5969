"""A wall clock that is stepped back and forth under a served store."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import kvstore
from kvstore import Message, Store, StoreConfig
from kvstore.errors import NotAuthenticated
from kvstore.files import LocalFiles
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.access.credentials import sha256_of
from tests.support import inside_pops
from tests.support.clock import SteppedClock
from tests.support.cutting import relaying
from tests.support.private_files import private_file
from tests.support.served import ServerThread
from tests.support.waiting import until

HOUR = 3600.0
CALLERS = 3
EACH = 120


@pytest.fixture
def stepped() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def store(tmp_path: Path, stepped: SteppedClock) -> Iterator[Store]:
    config = StoreConfig(clock=stepped, transaction_immunity=0.2, transaction_check_interval=0.1)
    with kvstore.open(tmp_path / "s", config) as store:
        store.create_topic("t", queues=2)
        store.create_topic("empty", queues=1)
        store.create_group("g")
        yield store


def stepping(clock: SteppedClock, stop: threading.Event, most: float, seed: int) -> None:
    """Sets the clock to and fro, around the right time."""
    steps = random.Random(seed)
    while not stop.wait(0.01):
        clock.set_off(steps.uniform(-most, most))


def bodies(store: Store) -> Counter[bytes]:
    return Counter(m.body for q in range(2) for m in store.pull("t", q, 0, 10_000).messages)


class Traffic:
    """Clients that put, some messages with a delay, and clients that pop and ack."""

    def __init__(self, url: str, invisible_for: float) -> None:
        self.put: dict[bytes, tuple[float, float]] = {}
        """When each was put, and its delay; in seconds, as they are."""
        self.came: dict[bytes, float] = {}
        self.acked: list[bytes] = []
        self.failures: list[BaseException] = []
        self._url = url
        self._invisible_for = invisible_for
        self._stop = threading.Event()
        works = [(work, n) for n in range(CALLERS) for work in (self._puts, self._pops)]
        self._threads = [threading.Thread(target=self._run, args=work) for work in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[kvstore.ServedStore, int], None], number: int) -> None:
        try:
            with kvstore.connect(self._url, reconnect_for=0) as client:
                work(client, number)
        except BaseException as e:
            self.failures.append(e)

    def _puts(self, client: kvstore.ServedStore, number: int) -> None:
        delays = random.Random(number)
        for i in range(EACH):
            body, delay = b"%d-%d" % (number, i), delays.choice((None, 0.3, 1.0))
            self.put[body] = time.monotonic(), delay or 0.0
            client.put("t", body, delay=delay)

    def _pops(self, client: kvstore.ServedStore, number: int) -> None:
        while not self._stop.is_set():
            found = client.pop("g", "t", 4, invisible_for=self._invisible_for, wait=0.2)
            now = time.monotonic()
            results = client.ack_batch([one.receipt for one in found])
            for one, result in zip(found, results, strict=True):
                self.came.setdefault(one.message.body, now)
                if result is True:
                    self.acked.append(one.message.body)

    def have_come(self, count: int) -> bool:
        """Whether so many messages have come; raises what a client has met."""
        for failure in self.failures:
            raise failure
        return len(self.put.keys() & self.came.keys()) >= count

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        assert self.failures == []


@pytest.mark.parametrize("most", [0.2, HOUR])
def test_nothing_is_done_twice_and_nothing_is_early_by_more_than_the_steps(
    server: ServerThread, store: Store, stepped: SteppedClock, most: float
) -> None:
    stop = threading.Event()
    stepper = threading.Thread(target=stepping, args=(stepped, stop, most, 7))
    store.schedule("s", "t", b"scheduled", every=1)
    stepper.start()
    traffic = Traffic(server.url, invisible_for=2 * most + 30)
    try:
        until(lambda: traffic.have_come(EACH * CALLERS // 2))
    finally:
        stop.set()
        stepper.join()
    # A message that was put while the clock was ahead is due when the clock comes there again.
    stepped.set_off(2 * most)
    until(lambda: traffic.have_come(EACH * CALLERS))
    store.delete_schedule("s")
    traffic.end()
    held = bodies(store)
    firings = held.pop(b"scheduled", 0)
    assert held == Counter(list(traffic.put))
    assert Counter(b for b in traffic.acked if b in traffic.put) == held
    for body, (at, delay) in traffic.put.items():
        assert traffic.came[body] - at >= delay - 3 * most  # from one end to the last step
    found = [m for q in range(2) for m in store.pull("t", q, 0, 10_000).messages]
    times = {m.properties["SCHEDULED_AT"] for m in found if m.body == b"scheduled"}
    assert len(times) == firings


def test_a_pop_that_waits_neither_ends_early_nor_hangs_nor_burns(
    server: ServerThread, store: Store, stepped: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("t", b"locked", queue=0)
    (locked,) = store.pop("g", "t", invisible_for=5 * HOUR)
    looks = inside_pops.looks_of_polls(monkeypatch)
    stop = threading.Event()
    stepper = threading.Thread(target=stepping, args=(stepped, stop, HOUR, 3))
    stepper.start()
    try:
        with kvstore.connect(server.url) as client:
            begun = time.monotonic()
            assert client.pop("g", ["empty", "t"], wait=1.0) == []
            assert time.monotonic() - begun >= 1.0
            waiting = threading.Thread(target=client.pop, args=("g", "empty"), kwargs={"wait": 30})
            waiting.start()
            store.put("empty", b"wakes it")
            waiting.join(20)
            assert not waiting.is_alive()
    finally:
        stop.set()
        stepper.join()
    # One of all pops that wait looks at the clock each tenth of a second.
    assert len(looks) < 40
    assert locked.attempt == 1


def test_a_lock_is_kept_by_a_clock_that_goes_back_and_ends_by_one_that_goes_ahead(
    server: ServerThread, store: Store, stepped: SteppedClock
) -> None:
    with kvstore.connect(server.url) as client:
        client.put("t", b"x")
        (first,) = client.pop("g", "t", invisible_for=600.0)
        stepped.set_off(-HOUR)
        assert client.pop("g", "t") == []
        stepped.set_off(500.0)
        assert client.pop("g", "t", wait=0.2) == []
        found: list[kvstore.Popped] = []
        waits = threading.Thread(target=lambda: found.extend(client.pop("g", "t", wait=30)))
        waits.start()
        stepped.set_off(HOUR)
        waits.join(20)
        assert [one.attempt for one in found] == [2]
        with pytest.raises(kvstore.ReceiptExpired):
            client.ack(first.receipt)
        client.ack(found[0].receipt)


def test_a_transaction_is_asked_about_when_its_time_has_come_and_committed_once(
    server: ServerThread, store: Store, stepped: SteppedClock
) -> None:
    asked: list[float] = []

    def answer(message: kvstore.StoredMessage) -> str:
        asked.append(time.monotonic())
        return "commit"

    with kvstore.connect(server.url) as client:
        checker = client.on_check("pay", answer)  # type: ignore[arg-type]  # it answers right
        for number in range(10):
            client.prepare("t", b"%d" % number, group="pay", immunity=600.0)
        for off in (-HOUR, 400.0, -HOUR, 500.0):
            stepped.set_off(off)
            until(lambda: client.stats() is not None)
        assert asked == []
        stepped.set_off(HOUR)
        until(lambda: sum(bodies(store).values()) == 10)
        stepped.set_off(-HOUR)
        stepped.set_off(2 * HOUR)
        until(lambda: client.transactions("pay").messages == [])
        checker.close()
    assert set(bodies(store).values()) == {1}


def test_a_session_outlives_a_broken_connection_though_the_clock_leaps(
    server: ServerThread, store: Store, stepped: SteppedClock, tmp_path: Path
) -> None:
    target = Path(server.url.removeprefix("kvmq+unix://"))
    with ExitStack() as ending:
        relay = ending.enter_context(relaying(tmp_path / "r", target, [900] * 20))
        client = ending.enter_context(kvstore.connect(f"kvmq+unix://{tmp_path / 'r'}"))
        for number in range(40):
            stepped.set_off(HOUR * (-1) ** number)
            client.create_topic(f"topic-{number}")  # a call that no new session would repeat
            client.put_batch([Message("t", b"%d" % number)])
        assert relay.connections > 5
    assert set(bodies(store).values()) == {1}
    assert len(store.topics()) == 42


def test_a_token_is_good_by_the_clock_as_it_is_now(tmp_path: Path, stepped: SteppedClock) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1)
    file = private_file(
        tmp_path / "credentials.toml",
        f'[[clients]]\nname = "shop"\ntoken_sha256 = "{sha256_of("a-token-of-the-shop")}"\n'
        f'produce = ["*"]\nexpires = {expires.isoformat()}\n',
    )
    access = AccessControl(file, LocalFiles(), stepped)
    for off, is_good in ((0.0, True), (2 * HOUR, False), (-HOUR, True), (3500.0, True),
                         (3601.0, False), (0.0, True)):  # fmt: skip
        stepped.set_off(off)
        if is_good:
            access.require(access.of_token("a-token-of-the-shop"), "produce", topic="t")
        else:
            with pytest.raises(NotAuthenticated):
                access.of_token("a-token-of-the-shop")
