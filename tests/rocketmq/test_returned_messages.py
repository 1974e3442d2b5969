"""Messages that waited when a store was exported, and that RocketMQ saw to, come here no second
time.

The logs are exported ones, with the records behind that RocketMQ writes; `test_real_broker` has
the broker write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore import DelayEnded, Store, StoredMessage, TransactionEnded
from kvstore.core.names import COMMIT
from kvstore.files import LocalFiles
from kvstore.rocketmq.log_files import log_files, read_log
from tests.rocketmq.adopting import WAYS_AGAIN
from tests.rocketmq.logs import NOW, record
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import settings

_TIMER: Final = "rmq_sys_wheel_timer"
_HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_OP: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_HOUR: Final = 3600
Make = Callable[[int], bytes]


class Exported:
    """An export of a store in which messages waited, and the log to which RocketMQ writes."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = VirtualClock(NOW)
        self.config = settings(clock=self.clock, segment_size=1 << 20)
        self.folder = tmp_path / "broker"
        self.back = tmp_path / "back"
        with kvstore.open(tmp_path / "store", self.config) as store:
            store.create_topic("t", queues=2)
            for queue in range(2):
                store.put("t", b"0", queue=queue)
            for name in (b"a", b"b"):
                store.put("t", name, delay=_HOUR, keys=["k"], tag="x")
            store.prepare("t", b"p", group="pay", immunity=60)
            with store.transaction(group="pay") as t:
                t.put("t", b"s")
                t.put("t", b"z")
                t.prepare()
                self.end = store.export_rocketmq_store(self.folder).end
        self.waiting = self._records()
        self.ids = {name: message.message_id for name, message in self.waiting.items()}

    def _records(self) -> dict[str, StoredMessage]:
        """The last record of each message in the exported log, by body."""
        read = read_log(log_files(self.folder, LocalFiles()), LocalFiles())
        found = (extent.message for extent in read if extent.message is not None)
        return {m.body.decode(): m for m in found if m.topic in (_TIMER, _HALF)}

    def write(self, *makers: Make) -> None:
        """Writes records to the log's end."""
        last = sorted((self.folder / "commitlog").iterdir())[-1]
        with last.open("r+b") as file:
            for make in makers:
                raw = make(self.end)
                file.seek(self.end - int(last.name))
                file.write(raw)
                self.end += len(raw)

    def to_its_topic(self, name: str, system_flags: int = 0) -> Make:
        """The record by which RocketMQ delivers or commits a message."""
        was = self.waiting[name]
        left_out = (b"REAL_TOPIC\x01", b"REAL_QID\x01", b"TRAN_MSG\x01")
        pairs = [p for p in was.raw_properties.split(b"\x02") if p and not p.startswith(left_out)]
        properties = b"\x02".join((*pairs, b""))
        prepared = was.position if system_flags else 0
        queue = int(was.properties["REAL_QID"])
        return lambda at: record(
            at,
            was.body,
            topic="t",
            queue=queue,
            offset=1,
            stored_at=NOW + 1000,
            properties=properties,
            system_flags=system_flags,
            prepared_position=prepared,
        )

    def next_offset(self, topic: str) -> int:
        return 1 + max(m.offset for m in self.waiting.values() if m.topic == topic)

    def again(self, name: str, times: int, more: str) -> Make:
        """The record by which RocketMQ lets a message wait again, in the same topic."""
        was = self.waiting[name]
        offset = self.next_offset(was.topic) + times
        properties = was.raw_properties + more.encode()
        return lambda at: record(
            at,
            was.body,
            topic=was.topic,
            offset=offset,
            stored_at=NOW + 1000,
            properties=properties,
        )

    def answered(self, name: str) -> Make:
        body = b"%d," % self.waiting[name].offset
        return lambda at: record(at, body, topic=_OP, properties=b"TAGS\x01d\x02")

    @contextmanager
    def here(self) -> Iterator[Store]:
        if not self.back.exists():
            kvstore.import_rocketmq(self.folder, self.back, self.config)
        with kvstore.open(self.back, self.config) as store:
            yield store


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    return Exported(tmp_path)


@pytest.fixture(params=[None, *WAYS_AGAIN])
def brought_up(request: pytest.FixtureRequest) -> Callable[[Exported], None]:
    """Imports, and does nothing else, or opens or rebuilds the store once more."""

    def bring_up(exported: Exported) -> None:
        with exported.here():
            pass
        if request.param is not None:
            request.param(exported.back, exported.config)

    return bring_up


BringUp = Callable[[Exported], None]


def bodies(store: Store) -> list[bytes]:
    """The messages that were delivered or committed."""
    return sorted(
        m.body for queue in range(2) for m in store.pull("t", queue, 1, limit=100).messages
    )


def waiting(store: Store) -> list[bytes]:
    return sorted(one.message.body for one in store.timers().messages)


def open_transactions(store: Store) -> list[bytes]:
    return sorted(one.message.body for one in store.transactions().messages)


def test_what_nobody_saw_to_waits_on(exported: Exported, brought_up: BringUp) -> None:
    brought_up(exported)
    with exported.here() as store:
        assert waiting(store) == [b"a", b"b"]
        assert open_transactions(store) == [b"p", b"s", b"z"]


def test_a_delivered_message_comes_no_second_time(exported: Exported, brought_up: BringUp) -> None:
    exported.write(exported.to_its_topic("a"))
    brought_up(exported)
    with exported.here() as store:
        assert waiting(store) == [b"b"]
        assert store.find(exported.ids["a"]).topic == "t"
        with pytest.raises(DelayEnded, match="delivered"):
            store.timer(exported.ids["a"])
        exported.clock.advance(2 * _HOUR)
        inside.deliver_due(store)
        assert bodies(store) == [b"a", b"b"]
        assert store.verify().problems == []


def test_a_message_that_rocketmq_rolled_comes_once(exported: Exported, brought_up: BringUp) -> None:
    exported.write(
        *(exported.again("a", n, f"TIMER_ROLL_TIMES\x01{n + 1}\x02") for n in range(3)),
    )
    brought_up(exported)
    with exported.here() as store:
        assert waiting(store) == [b"a", b"b"]
        assert store.timer(exported.ids["a"]).deliver_at == NOW + 1000 * _HOUR
        assert store.cancel(exported.ids["a"])
        exported.clock.advance(2 * _HOUR)
        inside.deliver_due(store)
        assert bodies(store) == [b"b"]


@pytest.mark.parametrize("named", ["t+{}", "{}"])
def test_a_message_that_rocketmq_cancelled_does_not_come(
    exported: Exported, brought_up: BringUp, named: str
) -> None:
    pairs = f"UNIQ_KEY\x01other\x02TIMER_DEL_UNIQKEY\x01{named.format(exported.ids['a'])}\x02"
    offset = exported.next_offset(_TIMER)
    exported.write(
        lambda at: record(at, b"", topic=_TIMER, offset=offset, properties=pairs.encode()),
        exported.again("a", 1, "TIMER_ROLL_TIMES\x011\x02"),
    )
    brought_up(exported)
    with exported.here() as store:
        assert waiting(store) == [b"b"]
        with pytest.raises(DelayEnded, match="cancelled"):
            store.timer(exported.ids["a"])
        assert store.cancel(exported.ids["a"])


def test_a_committed_message_waits_no_more(exported: Exported, brought_up: BringUp) -> None:
    exported.write(exported.to_its_topic("p", COMMIT))
    brought_up(exported)
    with exported.here() as store:
        assert open_transactions(store) == [b"s", b"z"]
        assert store.commit(exported.ids["p"]).offset == 1
        with pytest.raises(TransactionEnded, match="committed"):
            store.rollback(exported.ids["p"])
        assert bodies(store) == [b"p"]


def test_a_message_that_was_rolled_back_waits_no_more(
    exported: Exported, brought_up: BringUp
) -> None:
    exported.write(exported.answered("p"))
    brought_up(exported)
    with exported.here() as store:
        assert open_transactions(store) == [b"s", b"z"]
        with pytest.raises(TransactionEnded, match="rolled back"):
            store.commit(exported.ids["p"])
        assert bodies(store) == []


def test_a_message_that_rocketmq_asked_about_is_committed_once(
    exported: Exported, brought_up: BringUp
) -> None:
    exported.write(exported.again("p", 0, "TRANSACTION_CHECK_TIMES\x011\x02"))
    brought_up(exported)
    with exported.here() as store:
        assert open_transactions(store) == [b"p", b"s", b"z"]
        assert store.prepared(exported.ids["p"]).checks == 1
        store.commit(exported.ids["p"])
        assert open_transactions(store) == [b"s", b"z"]
        assert bodies(store) == [b"p"]


def test_the_rest_of_a_set_is_asked_about_by_itself(
    exported: Exported, brought_up: BringUp
) -> None:
    exported.write(exported.to_its_topic("s", COMMIT))
    brought_up(exported)
    with exported.here() as store:
        assert open_transactions(store) == [b"p", b"z"]
        left = store.prepared(exported.ids["z"])
        assert left.set_id is None
        assert left.check_at is not None
        asked: list[bytes] = []
        store.on_check("pay", lambda m: asked.append(m.body) or "commit")  # type: ignore[func-returns-value]
        exported.clock.advance(2 * _HOUR)
        inside.deliver_due(store)
        inside.ask_about_transactions(store)
        assert sorted(asked) == [b"p", b"z"]
        assert bodies(store) == [b"a", b"b", b"p", b"s", b"z"]
