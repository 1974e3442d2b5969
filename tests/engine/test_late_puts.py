"""Puts whose topic is deleted, or loses a queue, while they wait for their turn to write.

A put makes its records first. `Crossed` changes the topic between that and the writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import kvstore
from kvstore import (
    DelayEnded,
    Message,
    MessageIllegal,
    QueueNotEmpty,
    Store,
    TopicNotFound,
    rebuild,
)
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.contents import assert_whole, bodies
from tests.support.stores import settings

_HOUR: Final = 3600.0


class Crossed:
    """A store with topic "t", which is changed behind the next records that are made."""

    def __init__(self, folder: Path, clock: VirtualClock, patch: pytest.MonkeyPatch) -> None:
        self.clock = clock
        self.config = settings(clock=clock)
        self._folder = folder
        self.store = self._open()
        self.make()
        self._change: Callable[[], object] | None = None
        step = inside.appends(self.store)
        append = step.now

        def change_first(*args: Any, **named: Any) -> Any:
            change, self._change = self._change, None
            if change is not None:
                change()
            return append(*args, **named)

        step.replace(change_first, patch)

    def _open(self) -> Store:
        store = kvstore.open(self._folder, self.config)
        inside.engine(store).delivery.stop()
        return store

    def by(self, change: Callable[[], object]) -> None:
        """Makes a change behind the next records."""
        self._change = change

    def make(self) -> None:
        self.store.create_topic("t", queues=1, dedup_window=60)

    def delete(self) -> None:
        self.store.delete_topic("t")

    def make_anew(self) -> None:
        self.delete()
        self.make()

    def assert_holds(self, wanted: set[bytes]) -> None:
        """The change was made, and the store has these messages and no others, also when its index
        is built again.
        """
        assert self._change is None
        assert self._contents() == wanted
        self.store.close()
        self.store = self._open()
        assert self.store.recovery.damage == []
        assert self._contents() == wanted
        self.store.close()
        rebuild(self._folder, self.config)
        self.store = self._open()
        assert self._contents() == wanted

    def _contents(self) -> set[bytes]:
        assert_whole(self.store)
        own = [q for q in bodies(self.store).items() if q[0][0] == "t"]
        waiting = [w.message.body for w in self.store.timers().messages]
        waiting += [w.message.body for w in self.store.transactions().messages]
        return {*chain.from_iterable(found for _, found in own), *waiting}


@pytest.fixture
def crossed(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Crossed]:
    crossed = Crossed(tmp_path / "s", clock, monkeypatch)
    yield crossed
    crossed.store.close()


# --- messages that are new ---

_PUTS: Final[dict[str, Callable[[Store], object]]] = {
    "one": lambda store: store.put("t", b"late"),
    "batch": lambda store: store.put_batch([Message("t", b"late"), Message("t", b"late")]),
    "dedup": lambda store: store.put("t", b"late", dedup_id="d"),
    "columns": lambda store: store.put_columns("t", pa.table({"body": [b"late"]})),
    "dedup columns": lambda store: store.put_columns(
        "t", pa.table({"body": [b"late"], "dedup_id": ["d"]})
    ),
    "delayed": lambda store: store.put("t", b"late", delay=_HOUR),
    "delayed columns": lambda store: store.put_columns(
        "t", pa.table({"body": [b"late"], "deliver_at": [store.config.clock.now_ms() + 3_600_000]})
    ),
    "prepared": lambda store: store.prepare("t", b"late", group="p"),
    "schedule": lambda store: store.schedule("s", "t", b"late", every=_HOUR),
}
puts: Final = pytest.mark.parametrize("put", _PUTS.values(), ids=list(_PUTS))


@puts
def test_a_message_goes_to_the_topic_that_is_there_when_its_turn_comes(
    crossed: Crossed, put: Callable[[Store], object]
) -> None:
    crossed.store.put("t", b"before", dedup_id="d")
    crossed.by(crossed.make_anew)
    is_put = False
    with suppress(TopicNotFound):
        put(crossed.store)
        is_put = True
    # A schedule says that its topic has gone, and is not made.
    assert is_put is not (put is _PUTS["schedule"])
    crossed.assert_holds({b"late"} if is_put else set())


@puts
def test_a_message_whose_topic_has_gone_is_refused_and_leaves_nothing(
    crossed: Crossed, put: Callable[[Store], object]
) -> None:
    crossed.by(crossed.delete)
    with pytest.raises(TopicNotFound):
        put(crossed.store)
    assert crossed.store.schedules() == []
    crossed.make()
    crossed.assert_holds(set())


def test_a_put_beside_the_deletion_of_another_topic_is_made(crossed: Crossed) -> None:
    crossed.store.create_topic("u")
    crossed.by(lambda: crossed.store.delete_topic("u"))
    crossed.store.put("t", b"late")
    crossed.assert_holds({b"late"})


# --- messages that wait ---


def deliver(crossed: Crossed, message_id: str) -> None:
    crossed.clock.advance(2 * _HOUR)
    with suppress(TopicNotFound):  # the thread of deliveries tries again
        inside.deliver_due(crossed.store)
    inside.deliver_due(crossed.store)


def change(crossed: Crossed, message_id: str) -> None:
    with pytest.raises(DelayEnded):
        crossed.store.change_delay(message_id, delay=1)


def cancel(crossed: Crossed, message_id: str) -> None:
    assert crossed.store.cancel(message_id)


def leave(crossed: Crossed, message_id: str) -> None:
    for waits in (inside.engine(crossed.store).timers, inside.engine(crossed.store).transactions):
        waits.pending.leave([0])


@pytest.mark.parametrize("end", [deliver, change, cancel, leave])
@pytest.mark.parametrize("is_made", [False, True])
def test_a_delayed_message_goes_with_its_topic_at_each_step(
    crossed: Crossed, end: Callable[[Crossed, str], None], *, is_made: bool
) -> None:
    waiting = crossed.store.put("t", b"waits", delay=_HOUR)
    crossed.store.checkpoint()
    crossed.by(crossed.make_anew if is_made else crossed.delete)
    end(crossed, waiting.message_id)
    if not is_made:
        crossed.make()
    crossed.assert_holds(set())


def commit(crossed: Crossed, message_id: str) -> None:
    with pytest.raises(TopicNotFound):
        crossed.store.commit(message_id)


def roll_back(crossed: Crossed, message_id: str) -> None:
    crossed.store.rollback(message_id)


def ask_again(crossed: Crossed, message_id: str) -> None:
    position = crossed.store.find(message_id).position
    with suppress(TopicNotFound):
        inside.engine(crossed.store).transactions.answered(position, None)


@pytest.mark.parametrize("end", [commit, roll_back, ask_again, leave])
@pytest.mark.parametrize("is_made", [False, True])
def test_a_prepared_message_goes_with_its_topic_at_each_step(
    crossed: Crossed, end: Callable[[Crossed, str], None], *, is_made: bool
) -> None:
    prepared = crossed.store.prepare("t", b"waits", group="p", immunity=_HOUR)
    crossed.store.checkpoint()
    crossed.by(crossed.make_anew if is_made else crossed.delete)
    end(crossed, prepared.message_id)
    if not is_made:
        crossed.make()
    crossed.assert_holds(set())


def test_a_schedule_goes_with_its_topic_at_a_firing(crossed: Crossed) -> None:
    crossed.store.schedule("s", "t", b"waits", every=_HOUR)
    crossed.by(crossed.make_anew)
    deliver(crossed, "")
    assert crossed.store.schedules() == []
    crossed.assert_holds(set())


# --- queues, and changes that fail ---


def test_a_message_is_not_put_to_a_queue_that_readers_lost(crossed: Crossed) -> None:
    store = crossed.store
    store.alter_topic("t", queues=4, read_queues=4)
    crossed.by(lambda: store.alter_topic("t", queues=1, read_queues=1))
    with pytest.raises(MessageIllegal, match="queue"):
        store.put("t", b"x", queue=3)
    store.alter_topic("t", queues=4, read_queues=4)
    crossed.by(lambda: store.alter_topic("t", queues=1, read_queues=1))
    store.put_batch([Message("t", b"late") for _ in range(4)])
    store.alter_topic("t", queues=4, read_queues=4)
    assert bodies(store)["t", 0] == [b"late"] * 4
    store.put("t", b"again", queue=3)
    crossed.assert_holds({b"late", b"again"})


def test_queues_that_can_not_be_taken_away_go_on(crossed: Crossed) -> None:
    store = crossed.store
    store.alter_topic("t", queues=4, read_queues=4)
    store.put("t", b"first", queue=3)

    def try_to_shrink() -> None:
        with pytest.raises(QueueNotEmpty):
            store.alter_topic("t", queues=1, read_queues=1)

    crossed.by(try_to_shrink)
    store.put("t", b"late", queue=3)
    crossed.assert_holds({b"first", b"late"})


def test_a_topic_whose_deletion_fails_takes_messages(
    crossed: Crossed, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = crossed.store

    def fail_to_delete() -> None:
        with monkeypatch.context() as patch:
            inside.removals_of_topics(store).replace(_fail, patch)
            with pytest.raises(OSError, match="no disk"):
                store.delete_topic("t")

    crossed.by(fail_to_delete)
    store.put("t", b"late")
    store.put("t", b"later")
    crossed.assert_holds({b"late", b"later"})


def _fail(*_: object) -> None:
    raise OSError("no disk")
