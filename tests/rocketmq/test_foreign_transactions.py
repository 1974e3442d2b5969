"""Messages that RocketMQ prepared and whose transactions did not end there: they wait here, each
once, are asked about, and are committed or rolled back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore import CallerError, PreparedMessage, Store, StoreConfig, StoredMessage
from kvstore.core.names import COMMIT, TRANSACTION_DISCARD_TOPIC, TRANSACTION_HALF_TOPIC
from kvstore.index.families import Batch
from kvstore.index.keys import FOREIGN_TRANSACTIONS
from kvstore.timing.checks import Answer
from tests.fixtures import NAMES, Fixture, unpack_fixture
from tests.rocketmq.adopting import WAYS_AGAIN, adopted
from tests.rocketmq.logs import NOW, log_of, record
from tests.support import inside
from tests.support.clock import VirtualClock
from tests.support.stores import settings

_HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_OP: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_MINUTE: Final = 60


def waiting_in(fixture: Fixture) -> dict[str, Any]:
    """The one prepared message of the manifest that no answer names: its last record."""
    messages = fixture.manifest["messages"]
    (answer,) = (m for m in messages if m["topic"] == _OP)
    assert answer["bodySha256"] == hashlib.sha256(b"0,1,3,").hexdigest()
    (first, *others) = (
        m for m in messages if m["topic"] == _HALF and m["queueOffset"] not in (0, 1, 3)
    )
    assert {m["uniqKey"] for m in others} <= {first["uniqKey"]}
    found: dict[str, Any] = [first, *others][-1]
    return found


def clock_of(fixture: Fixture) -> VirtualClock:
    return VirtualClock(max(m["storeTimestamp"] for m in fixture.manifest["messages"]) + 1000)


def asked(store: Store, answer: Answer) -> list[StoredMessage]:
    """The messages that a checker of the fixture's group is asked about; it answers so."""
    seen: list[StoredMessage] = []

    def check(message: StoredMessage) -> Answer:
        seen.append(message)
        return answer

    checker = store.on_check("PID_trans", check)
    inside.ask_about_transactions(store)
    checker.close()
    return seen


def copies_of(store: Store, message_id: str, topic: str = "TopicTest") -> list[StoredMessage]:
    return [
        m
        for queue in range(store.topic(topic).read_queues)
        for m in store.pull(topic, queue, 0, limit=10_000).messages
        if m.message_id == message_id
    ]


@pytest.mark.parametrize("name", NAMES)
def test_only_the_message_without_an_answer_waits_and_its_commit_is_in_its_queue(
    name: str, tmp_path: Path
) -> None:
    fixture = unpack_fixture(name, tmp_path / "source")
    wanted, clock = waiting_in(fixture), clock_of(fixture)
    with adopted(fixture.store, tmp_path / "target", settings(clock=clock)) as store:
        (found,) = store.transactions("PID_trans").messages
        assert (found.topic, found.queue) == ("TopicTest", int(wanted["properties"]["REAL_QID"]))
        assert found.message_id == wanted["uniqKey"]
        assert found.checks == int(wanted["properties"].get("TRANSACTION_CHECK_TIMES", 0))
        assert copies_of(store, found.message_id) == []
        clock.advance(_MINUTE)
        (message,) = asked(store, "commit")
        (committed,) = copies_of(store, found.message_id)
        for one in (message, committed):
            plain = wanted.get("plainBodySha256") or wanted["bodySha256"]
            assert hashlib.sha256(one.body).hexdigest() == plain
            assert (one.keys, one.tag) == ([wanted["keys"]], wanted["tags"])
            assert one.user_properties == {"idx": wanted["properties"]["idx"]}
            assert one.properties["__transactionId__"] == wanted["uniqKey"]
        assert committed.queue == found.queue
        assert store.find(found.message_id) == committed
        assert store.commit(found.message_id).position == committed.position
        assert store.transactions().count == 0
        assert store.verify().problems == []


@pytest.mark.parametrize("name", NAMES)
def test_transactions_that_ended_in_rocketmq_are_not_ended_again(name: str, tmp_path: Path) -> None:
    fixture = unpack_fixture(name, tmp_path / "source")
    ended = {
        m["uniqKey"]: m["queueOffset"]
        for m in fixture.manifest["messages"]
        if m["topic"] == _HALF and m["queueOffset"] in (0, 1, 3)
    }
    with adopted(fixture.store, tmp_path / "target", settings(clock=clock_of(fixture))) as store:
        for message_id, offset in ended.items():
            before = copies_of(store, message_id)
            assert len(before) == (offset != 1)  # 1 was rolled back
            for call in (store.commit, store.rollback, store.prepared):
                with pytest.raises((CallerError, kvstore.MessageNotFound)):
                    call(message_id)
            assert copies_of(store, message_id) == before


@pytest.mark.parametrize("again", WAYS_AGAIN)
@pytest.mark.parametrize("answer", [None, "commit", "rollback", "unknown"])
def test_it_ends_once_whatever_is_done_between(
    again: Callable[[Path, StoreConfig], None], answer: Answer | None, tmp_path: Path
) -> None:
    fixture = unpack_fixture("classic", tmp_path / "source")
    message_id, clock = waiting_in(fixture)["uniqKey"], clock_of(fixture)
    config, path = settings(clock=clock), fixture.store
    with kvstore.open(path, config) as store:
        clock.advance(_MINUTE)
        if answer is not None:
            assert len(asked(store, answer)) == 1
    again(path, config)
    with kvstore.open(path, config) as store:
        clock.advance(_MINUTE)
        assert store.transactions().count == (answer in (None, "unknown"))
        is_asked = bool(asked(store, "commit"))
        assert is_asked is (answer in (None, "unknown"))
        assert len(copies_of(store, message_id)) == (answer != "rollback")
        assert store.transactions().count == 0
        assert store.verify().problems == []


def test_it_waits_once_if_the_adoption_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = unpack_fixture("classic", tmp_path / "source")
    message_id, config = waiting_in(fixture)["uniqKey"], settings(clock=clock_of(fixture))
    plain = Batch.delete

    def delete(self: Batch, name: str, key: bytes) -> None:
        if key == FOREIGN_TRANSACTIONS:
            raise RuntimeError("cut short")
        plain(self, name, key)

    monkeypatch.setattr(Batch, "delete", delete)
    with pytest.raises(RuntimeError, match="cut short"):
        kvstore.open(fixture.store, config)
    monkeypatch.undo()
    with kvstore.open(fixture.store, config, read_only=True) as store:
        assert [one.message_id for one in store.transactions().messages] == [message_id]
        end = store.bounds(TRANSACTION_HALF_TOPIC, 0).next_offset
    with kvstore.open(fixture.store, config) as store:
        assert [one.message_id for one in store.transactions().messages] == [message_id]
        assert store.bounds(TRANSACTION_HALF_TOPIC, 0).next_offset == end


def test_its_ids_are_found_where_keys_are_not_indexed(tmp_path: Path) -> None:
    fixture = unpack_fixture("classic", tmp_path / "source")
    config = settings(clock=clock_of(fixture), key_index="off")
    with kvstore.open(fixture.store, config) as store:
        message_id = waiting_in(fixture)["uniqKey"]
        assert store.prepared(message_id).message_id == message_id
        store.commit(message_id)
        assert len(copies_of(store, message_id)) == 1


# --- transactions that no fixture has, in logs made by hand ---


def half(position: int, name: str | None, offset: int, more: str = "", topic: str = _HALF) -> bytes:
    """A message that RocketMQ prepared; it goes to queue 1 of `T`."""
    own = "" if name is None else f"UNIQ_KEY\x01{name}\x02"
    pairs = f"{own}TRAN_MSG\x01true\x02PGROUP\x01p\x02REAL_TOPIC\x01T\x02REAL_QID\x011\x02{more}"
    return record(position, b"x", topic=topic, offset=offset, properties=pairs.encode())


def answered(position: int, body: bytes, offset: int = 0, tag: str = "d") -> bytes:
    return record(position, body, topic=_OP, offset=offset, properties=f"TAGS\x01{tag}".encode())


def committed(position: int, name: str, offset: int = 0) -> bytes:
    raw = f"UNIQ_KEY\x01{name}\x02PGROUP\x01p\x02".encode()
    return record(
        position, b"x", topic="T", queue=1, offset=offset, system_flags=COMMIT, properties=raw
    )


def waiting_of(path: Path, **config: Any) -> dict[str, PreparedMessage]:
    """The messages that wait, by id."""
    with kvstore.open(path, settings(clock=VirtualClock(NOW), **config)) as store:
        page = store.transactions("p")
        assert page.count == len(page.messages)
        return {one.message_id: one for one in page.messages}


@pytest.mark.parametrize("body", [b"0,2,", b"2,0", b"nonsense,2,,-1,99999999999999999999,0,"])
def test_answers_name_offsets_in_any_order_and_nonsense_names_none(
    body: bytes, tmp_path: Path
) -> None:
    path = log_of(
        tmp_path,
        *(partial(half, name=name, offset=n) for n, name in enumerate("abc")),
        lambda at: answered(at, body),
        lambda at: answered(at, b"1", 1, tag="e"),
    )
    assert set(waiting_of(path)) == {"b"}


@pytest.mark.parametrize("body", [b"0,", b"1,"])
def test_an_answer_to_any_record_of_a_message_ends_its_transaction(
    body: bytes, tmp_path: Path
) -> None:
    path = log_of(
        tmp_path,
        lambda at: half(at, "a", 0),
        lambda at: half(at, "a", 1, "TRANSACTION_CHECK_TIMES\x011\x02"),
        lambda at: half(at, "b", 2),
        lambda at: answered(at, body),
    )
    assert set(waiting_of(path)) == {"b"}


def test_the_last_record_of_a_message_counts_with_its_checks(tmp_path: Path) -> None:
    path = log_of(
        tmp_path,
        lambda at: half(at, "a", 0),
        lambda at: half(at, "a", 1, "TRAN_PREPARED_QUEUE_OFFSET\x010\x02"),
        lambda at: half(at, "a", 2, "TRANSACTION_CHECK_TIMES\x013\x02"),
    )
    (found,) = waiting_of(path).values()
    assert (found.checks, found.check_at) == (3, NOW + 30_000)


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ("", 6), ("CHECK_IMMUNITY_TIME_IN_SECONDS\x01100\x02", 100),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS\x01never\x02", 6),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS\x019999999999999\x02", 30 * 86400),
        ("TIMER_OUT_MS\x011795000009999\x02TIMER_DELAY_MS\x015\x02DELAY\x013\x02", 6),
        ("TRAN_CHECK_MS\x011795000009999\x02TRAN_SET\x01a 1 2\x02TRAN_SINCE_MS\x011\x02", 6),
    ],
)  # fmt: skip
def test_it_is_asked_about_after_its_immunity(more: str, seconds: int, tmp_path: Path) -> None:
    path = log_of(tmp_path, lambda at: half(at, "a", 0, more))
    (found,) = waiting_of(path).values()
    assert (found.check_at, found.since, found.set_id) == (NOW + 1000 * seconds, NOW, None)


def test_a_commit_whose_answer_was_not_written_ends_it_also_one_before_a_check(
    tmp_path: Path,
) -> None:
    path = log_of(
        tmp_path,
        lambda at: half(at, "a", 0),
        lambda at: half(at, "b", 1),
        lambda at: half(at, None, 2),
        lambda at: record(
            at, b"x", topic="T", queue=1, system_flags=COMMIT,
            prepared_position=2 * len(half(0, "a", 0)),
        ),
        lambda at: committed(at, "a", 1),
        lambda at: half(at, "a", 3, "TRANSACTION_CHECK_TIMES\x011\x02"),
    )  # fmt: skip
    assert set(waiting_of(path)) == {"b"}


def test_what_rocketmq_gave_up_does_not_wait(tmp_path: Path) -> None:
    path = log_of(
        tmp_path,
        lambda at: half(at, "a", 0),
        lambda at: half(at, "b", 1),
        lambda at: half(at, "a", 0, topic=TRANSACTION_DISCARD_TOPIC),
    )
    assert set(waiting_of(path)) == {"b"}


def test_below_the_progress_of_the_checks_only_what_was_put_again_waits(tmp_path: Path) -> None:
    path = log_of(
        tmp_path,
        lambda at: half(at, "a", 0),
        lambda at: half(at, "b", 1),
        lambda at: half(at, "a", 2, "TRANSACTION_CHECK_TIMES\x011\x02"),
    )
    (path / "config").mkdir()
    table = '{"offsetTable":{"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:2}}}'
    (path / "config" / "consumerOffset.json").write_text(table)
    assert set(waiting_of(path)) == {"a"}


def test_transactions_that_rocketmq_kept_in_rocksdb_wait_unless_their_position_was_answered(
    tmp_path: Path,
) -> None:
    topic, op = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
    second = len(half(0, "a", 0, topic=topic))
    path = log_of(
        tmp_path,
        lambda at: half(at, "a", 0, topic=topic),
        lambda at: half(at, "b", 1, topic=topic),
        lambda at: record(
            at, b"d", topic=op, properties=f"TAGS\x01d\x02TRANS_OFFSET\x01{second}".encode()
        ),
    )
    assert set(waiting_of(path)) == {"a"}


def test_what_names_no_topic_or_no_queue_is_left_alone(tmp_path: Path) -> None:
    path = log_of(
        tmp_path,
        lambda at: record(at, b"x", topic=_HALF),
        lambda at: half(at, "a", 1, "REAL_QID\x01none\x02"),
        lambda at: half(at, "b", 2, f"REAL_TOPIC\x01{_HALF}\x02"),
        lambda at: half(at, "c", 3),
    )
    assert set(waiting_of(path)) == {"c"}


def test_a_message_without_an_id_is_committed_once_by_an_id_made_of_its_position(
    tmp_path: Path,
) -> None:
    path = log_of(tmp_path, lambda at: half(at, None, 0))
    (message_id,) = waiting_of(path)
    assert message_id == f"7F00000100002A9F{0:016X}-pending"
    config = settings(clock=VirtualClock(NOW))
    with kvstore.open(path, config) as store:
        store.commit(message_id)
    WAYS_AGAIN[-1](path, config)
    with kvstore.open(path, config) as store:
        assert store.transactions().count == 0
        assert [m.message_id for m in copies_of(store, message_id, "T")] == [message_id]


@pytest.mark.parametrize("checks", ["9" * 5000, "-1", "x", "\u0663"])
def test_a_count_of_checks_that_is_none_is_no_check(checks: str, tmp_path: Path) -> None:
    more = f"TRANSACTION_CHECK_TIMES\x01{checks}\x02"
    (found,) = waiting_of(log_of(tmp_path, lambda at: half(at, "a", 0, more))).values()
    assert found.checks in (0, 3)


def test_one_that_lay_for_long_is_asked_about_before_it_is_given_up(tmp_path: Path) -> None:
    path = log_of(tmp_path, lambda at: half(at, "a", 0))
    clock = VirtualClock(NOW + 1000 * 86400 * 365)
    with kvstore.open(path, settings(clock=clock)) as store:
        seen: list[str] = []
        store.on_check("p", lambda m: seen.append(m.message_id) or "commit")  # type: ignore[func-returns-value]
        inside.ask_about_transactions(store)
        assert seen == ["a"]
        assert [m.message_id for m in copies_of(store, "a", "T")] == ["a"]
