"""Calls on messages in time that ask for the impossible, by every door: the store, asyncio, a
namespace and the command line. Each is refused with its own error, which says what was asked, and
nothing changes.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

import kvstore
from kvstore import (
    CallerError,
    Message,
    MessageIllegal,
    StoreConfig,
    StoredMessage,
    StoreError,
    TopicConfig,
    TransactionEnded,
)
from kvstore.cli import kvmq as command
from kvstore.core.names import (
    TIMER_TOPIC,
    TRANSACTION_DISCARD_TOPIC,
    TRANSACTION_HALF_TOPIC,
)
from tests.support import inside
from tests.support.stores import SMALL, killed, settings
from tests.support.waiting import until

FAR: Final = 4_000_000_000_000
QUICK: Final = settings(transaction_check_interval=0.05, transaction_checks=100)
YEARS: Final = 1_262_304_001
"""Seconds: more than 40 years."""


class Refused(Exception):
    """The name of an error's class, and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Door:
    """A way to call a store that has topic "t", and topic "w" with a dedup window."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with kvstore.open(path, SMALL) as store:
            self.make(store)

    def make(self, store: Any) -> None:
        store.create_topic("t", queues=1)
        store.create_topic("w", queues=1, dedup_window=3600.0)

    def call(self, name: str, *args: Any, **given: Any) -> Any:
        """The result of a call; `Refused` if it raises an error of the store."""
        try:
            return self.calls(name, *args, **given)
        except StoreError as e:
            raise Refused(type(e).__name__, str(e)) from e

    def calls(self, name: str, *args: Any, **given: Any) -> Any:
        with kvstore.open(self.path, SMALL) as store:
            return getattr(store, name)(*args, **given)

    def end(self) -> int:
        """The end of the log: nothing was put in between if it is the same."""
        with kvstore.open(self.path, SMALL, read_only=True) as store:
            return store.stats().end_position


class AsyncDoor(Door):
    def calls(self, name: str, *args: Any, **given: Any) -> Any:
        async def run() -> Any:
            async with kvstore.aio.open(self.path, SMALL) as store:
                return await getattr(store, name)(*args, **given)

        return asyncio.run(run())


class NamespaceDoor(Door):
    def make(self, store: Any) -> None:
        super().make(store.namespace("n"))

    def calls(self, name: str, *args: Any, **given: Any) -> Any:
        with kvstore.open(self.path, SMALL) as store:
            return getattr(store.namespace("n"), name)(*args, **given)


class AsyncNamespaceDoor(NamespaceDoor):
    def calls(self, name: str, *args: Any, **given: Any) -> Any:
        async def run() -> Any:
            async with kvstore.aio.open(self.path, SMALL) as store:
                return await getattr(store.namespace("n"), name)(*args, **given)

        return asyncio.run(run())


class CommandDoor(Door):
    VERBS: Final = {
        "put": ("put",), "cancel": ("timer", "cancel"), "timer": ("timer", "show"),
        "change_delay": ("timer", "change"), "commit": ("tx", "commit"),
        "rollback": ("tx", "rollback"), "prepared": ("tx", "show"),
        "schedule": ("schedule", "create"), "delete_topic": ("topic", "delete"),
    }  # fmt: skip

    def calls(self, name: str, *args: Any, **given: Any) -> Any:
        """`kvmq VERB DIR ARGS --OPTION VALUE --json`."""
        values = [a.decode() if isinstance(a, bytes) else str(a) for a in args]
        if name in ("put", "schedule") and len(args) > 1:
            values[-1:] = ["--body", values[-1]]
        for option, value in given.items():
            values.append(f"--{option.replace('_', '-')}={value}")
        ran = CliRunner().invoke(
            command, [*self.VERBS[name], str(self.path), *values, "--json"], catch_exceptions=False
        )
        if ran.exit_code == 2:
            raise Refused("UsageError", ran.stderr)
        if ran.exit_code:
            found = json.loads(ran.stderr or ran.stdout)
            found = found[0] if isinstance(found, list) else found
            if found.get("error") is None:
                return found["cancelled"]
            raise Refused(found["error"], found["message"])
        return json.loads(ran.stdout)


DOORS: Final = [Door, AsyncDoor, NamespaceDoor, AsyncNamespaceDoor, CommandDoor]


@pytest.fixture(params=DOORS, ids=lambda door: door.__name__)
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Door:
    made: Door = request.param(tmp_path / "s")
    return made


def assert_refused(door: Door, names: str, says: str, call: str, *args: Any, **given: Any) -> None:
    """The call is refused with one of some errors, or as the command refuses an option."""
    before = door.end()
    with pytest.raises(Refused, match=says) as e:
        door.call(call, *args, **given)
    is_usage = e.value.name == "UsageError" and isinstance(door, CommandDoor)
    assert is_usage or e.value.name in names.split()
    assert door.end() == before


TIMES: Final[list[tuple[dict[str, Any], str]]] = [
    ({"delay": -1}, r"-1(\.0)? is not|delay is -1"),
    ({"delay": math.nan}, "nan"),
    ({"delay": math.inf}, "inf"),
    ({"delay": YEARS}, "1262304001"),
    ({"delay": 10**400}, r"40 years|integer string|digits|inf"),
    ({"delay": -(10**400)}, r"40 years|integer string|digits|inf"),
    ({"delay": "soon"}, "'soon'"),
    ({"deliver_at": -5}, "deliver_at is -5"),
    ({"deliver_at": math.nan}, "nan"),
    ({"deliver_at": math.inf}, "inf"),
    ({"deliver_at": 1_700_000_000}, "this looks like seconds: multiply by 1000"),
    ({"deliver_at": 1_700_000_000_000_000}, "this looks like microseconds: divide by 1000"),
    ({"deliver_at": 946_684_799_999}, "from 2000 to 2100"),
    ({"deliver_at": 4_102_444_800_000}, "from 2000 to 2100"),
    ({"deliver_at": 10**400}, r"from 2000 to 2100|integer string|digits"),
]
EXPIRIES: Final[list[tuple[dict[str, Any], str]]] = [
    ({"expires_at": -5}, "expires_at is -5"),
    ({"expires_at": math.nan}, "nan"),
    ({"expires_at": 1_700_000_000}, "this looks like seconds: multiply by 1000"),
    ({"expires_at": 946_684_799_999}, "from 2000 to 2100"),
    ({"expires_at": 4_102_444_800_000}, "from 2000 to 2100"),
    ({"delay_level": 0}, r"0 is not|delay_level is 0"),
    ({"delay_level": 19}, r"19 is not|delay_level is 19"),
    ({"delay_level": 1, "delay": 5}, r"delay.*delay.level"),
]


@pytest.mark.parametrize(("asked", "says"), TIMES + EXPIRIES)
def test_a_time_that_is_none_is_refused_by_a_put(
    door: Door, asked: dict[str, Any], says: str
) -> None:
    assert_refused(door, "MessageIllegal", says, "put", "t", b"x", **asked)


@pytest.mark.parametrize(("asked", "says"), TIMES)
def test_a_time_that_is_none_changes_no_delay(door: Door, asked: dict[str, Any], says: str) -> None:
    put = door.call("put", "t", b"x", delay=3600)
    message_id = put["message_id"] if isinstance(put, dict) else put.message_id
    assert_refused(door, "MessageIllegal", says, "change_delay", message_id, **asked)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("w", {"dedup_id": ""}), "dedup_id is ''"),
        (("w", {"dedup_id": "x" * 256}), "the limit is 255"),
        (("w", {"dedup_id": "a", "delay": 5}), "is delayed"),
        (("t", {"dedup_id": "a"}), "takes no dedup ids"),
    ],
)
def test_a_dedup_id_that_is_none_is_refused(door: Door, given: Any, says: str) -> None:
    topic, asked = given
    assert_refused(door, "MessageIllegal", says, "put", topic, b"x", **asked)


def test_a_prepared_message_has_no_dedup_id_and_the_error_says_which_it_is(
    tmp_path: Path,
) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_topic("w", dedup_window=60.0)
        batch = [Message("w", b""), Message("w", b"", dedup_id="a")]
        block = store.transaction(group="pay")
        block.put_batch(batch)
        for call in (block.commit, lambda: store.prepare_batch(batch, group="pay")):
            with pytest.raises(kvstore.MessageIllegal, match=r"message 1 of 2: .*is prepared"):
                call()
        assert store.transactions().count == 0


@pytest.mark.parametrize("call", ["cancel", "timer", "commit", "rollback", "prepared"])
@pytest.mark.parametrize("message_id", ["7F00000100007EE371800000", "nonsense"])
def test_an_id_that_no_message_has_is_refused(door: Door, call: str, message_id: str) -> None:
    assert_refused(
        door, "MessageNotFound", f"no message has the id '{message_id}'", call, message_id
    )


@pytest.mark.parametrize("call", ["cancel", "timer", "commit", "rollback", "prepared"])
def test_an_empty_id_is_said_to_be_empty(door: Door, call: str) -> None:
    assert_refused(door, "CallerError", "it must be a text of at least one character", call, "")


@pytest.mark.parametrize("group", ["", 5, b"pay", "a b", "x" * 300])
def test_prepared_messages_of_no_group_are_not_listed(tmp_path: Path, group: Any) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_namespace("n")
        for calls in (store, store.namespace("n")):
            with pytest.raises(MessageIllegal, match=r"group|name"):
                calls.transactions(group)


def test_a_message_of_before_is_neither_cancelled_nor_ended(door: Door) -> None:
    put = door.call("put", "t", b"x", delay=0)
    message_id = put["message_id"] if isinstance(put, dict) else put.message_id
    assert door.call("cancel", message_id) is False, "it was delivered"
    assert_refused(door, "DelayEnded", "was delivered", "change_delay", message_id, delay=5)
    assert_refused(door, "DelayEnded", "was delivered", "timer", message_id)
    for call in ("commit", "rollback"):
        assert_refused(door, "MessageNotFound", "without a transaction", call, message_id)


@pytest.mark.parametrize("door_type", [NamespaceDoor, AsyncNamespaceDoor])
def test_ids_of_another_namespace_are_unknown(tmp_path: Path, door_type: type[Door]) -> None:
    door = door_type(tmp_path / "s")
    with kvstore.open(door.path, SMALL) as store:
        store.create_topic("t")
        delayed = store.put("t", b"", delay=3600).message_id
        prepared = store.prepare("t", b"", group="pay").message_id
    for call, message_id in (
        ("cancel", delayed), ("timer", delayed), ("commit", prepared), ("rollback", prepared),
        ("prepared", prepared),
    ):  # fmt: skip
        assert_refused(door, "MessageNotFound", "no message has the id", call, message_id)
    assert_refused(door, "MessageNotFound", "no message", "change_delay", delayed, delay=5)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_transaction_that_ended_or_was_given_up_is_not_ended_in_the_other_way(
    door: Door, is_given_up: bool
) -> None:
    group = "n%pay" if isinstance(door, NamespaceDoor) else "pay"
    topic = "n%t" if isinstance(door, NamespaceDoor) else "t"
    config = StoreConfig(segment_size=SMALL.segment_size, transaction_checks=1,
                         transaction_check_interval=0.01)  # fmt: skip
    with kvstore.open(door.path, config) as store:
        gone, done = (store.prepare(topic, b"", group=group, immunity=0) for _ in range(2))
        store.commit(done)
        if is_given_up:
            store.on_check(group, lambda message: "unknown")
            while store.transactions().count:
                inside.ask_about_transactions(store)
        else:
            store.rollback(gone)
    assert_refused(door, "TransactionEnded", "was rolled back", "commit", gone.message_id)
    assert_refused(door, "TransactionEnded", "was committed", "rollback", done.message_id)
    assert_refused(
        door, "TransactionEnded", "rolled back, or given up", "prepared", gone.message_id
    )
    door.call("rollback", gone.message_id)
    door.call("commit", done.message_id)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cron": "0 25 * * *"}, "at character 2.*no hour is '25'"),
        ({"cron": "* * * *"}, "it has 4 fields"),
        ({"cron": "0 0 30 2 *"}, "none of its months has that day"),
        ({"cron": "0 0 * * *", "zone": "Mars/Crater"}, "no time zone"),
        ({"every": 0}, "every is 0"),
        ({"every": math.nan}, "every is nan"),
        ({"every": math.inf}, "every is inf"),
        ({"every": YEARS}, "40 years"),
        ({"every": 60, "cron": "0 0 * * *"}, "both are given"),
        ({}, "neither is given"),
        ({"every": 60, "expires_after": -1}, "expires_after is -1"),
        ({"every": 60, "missed": "some"}, "some"),
    ],
)
def test_a_schedule_that_is_none_is_refused(door: Door, asked: dict[str, Any], says: str) -> None:
    names = "ScheduleIllegal MessageIllegal CallerError"
    assert_refused(door, names, says, "schedule", "s", "t", b"x", **asked)
    with kvstore.open(door.path, SMALL) as store:
        assert store.schedules() == []


def test_a_deleted_topic_says_how_many_messages_went_with_it(door: Door) -> None:
    topic, group = ("n%t", "n%pay") if isinstance(door, NamespaceDoor) else ("t", "pay")
    with kvstore.open(door.path, SMALL) as store:
        store.put(topic, b"", delay=3600)
        store.prepare(topic, b"", group=group)
        store.schedule("n%s" if "%" in topic else "s", topic, b"", every=3600)
    found = door.call("delete_topic", "t")
    assert (found["waiting"] if isinstance(found, dict) else found) == 3
    with kvstore.open(door.path, SMALL) as store:
        assert (store.timers().count, store.transactions().count) == (0, 0)
        assert store.schedules() == []


def test_the_topic_that_tells_of_transactions_that_were_given_up_is_not_deleted(
    door: Door,
) -> None:
    topic = TRANSACTION_DISCARD_TOPIC
    other = "n%t" if isinstance(door, NamespaceDoor) else "t"
    config = StoreConfig(segment_size=SMALL.segment_size, transaction_age=0.001)
    with kvstore.open(door.path, config) as store:
        prepared = store.prepare(other, b"x", group="pay")
        while store.transactions().count:
            inside.ask_about_transactions(store)
    if isinstance(door, NamespaceDoor):
        assert_refused(door, "TopicNotFound", topic, "delete_topic", topic)
    else:
        assert_refused(door, "CallerError", "tells that they were", "delete_topic", topic)
    with kvstore.open(door.path, SMALL) as store:
        with pytest.raises(CallerError, match="tells that they were"):
            store.delete_topics([other, topic])
        assert store.topic(other).name == other
        with pytest.raises(TransactionEnded, match="was rolled back"):
            store.commit(prepared.message_id)


@pytest.mark.parametrize("topic", [TIMER_TOPIC, TRANSACTION_HALF_TOPIC])
def test_the_topics_in_which_messages_wait_are_not_deleted(door: Door, topic: str) -> None:
    if isinstance(door, NamespaceDoor):
        assert_refused(door, "TopicNotFound", topic, "delete_topic", topic)
        return
    with kvstore.open(door.path, SMALL) as store:
        delayed = store.put("t", b"x", delay=3600)
        prepared = store.prepare("t", b"y", group="pay")
    assert_refused(door, "CallerError", "messages wait in the topic", "delete_topic", topic)
    with kvstore.open(door.path, SMALL) as store:
        with pytest.raises(CallerError, match="messages wait in the topic"):
            store.delete_topics(["t", topic])
        assert (store.timers().count, store.transactions().count) == (1, 1)
        assert store.cancel(delayed.message_id)
        assert store.commit(prepared).offset == 0


@pytest.mark.parametrize("topic", [TIMER_TOPIC, TRANSACTION_HALF_TOPIC])
def test_the_topics_in_which_messages_wait_stay_as_they_are(tmp_path: Path, topic: str) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_topics([TopicConfig(name=topic, key_index="off"), TopicConfig(name="t")])
        made = store.topic(topic)
        with pytest.raises(CallerError, match="messages wait in the topic"):
            store.alter_topic(topic, key_index="off")
        assert store.topic(topic) == made
        delayed, prepared = store.put("t", b"x", delay=3600), store.prepare("t", b"y", group="pay")
        store.checkpoint()
        assert store.cancel(delayed.message_id)
        assert store.commit(prepared.message_id).offset == 0


@pytest.mark.parametrize("topic", [TIMER_TOPIC, TRANSACTION_HALF_TOPIC])
def test_messages_that_wait_are_neither_popped_nor_read(tmp_path: Path, topic: str) -> None:
    with kvstore.open(tmp_path / "s", SMALL) as store:
        store.create_topic("t", queues=1)
        store.create_group("g")
        put = store.put("t", b"x", delay=3600, keys=["k"])
        prepared = store.prepare("t", b"y", group="pay", keys=["k"])
        for is_written in (False, True):
            if is_written:
                store.checkpoint()
            for key in ("k", put.message_id, prepared.message_id):
                assert store.query("t", key) == []
                with pytest.raises(CallerError, match="messages wait in the topic"):
                    store.query(topic, key)
            for read in (store.get, store.pull, store.pull_columns):
                with pytest.raises(CallerError, match="list what waits with timers or transac"):
                    read(topic, 0, 0)
            assert store.find(prepared.message_id).body == b"y"
            assert store.timer(put.message_id).message.body == b"x"
        with pytest.raises(CallerError, match="messages wait in the topic"):
            store.pull(topic, 0, 0, filter="a")
        for wait in (0.0, 5.0):
            with pytest.raises(CallerError, match="messages wait in the topic"):
                store.pop("g", topic, wait=wait)
        assert store.pop("g", ["t", topic]) == []
        assert store.pop("g", f"{topic[:8]}*") == []
        assert store.in_flight("g", topic).messages == []

        async def run() -> None:
            async with kvstore.aio.open(tmp_path / "s2", SMALL) as other:
                await other.create_topic("t")
                await other.create_group("g")
                await other.prepare("t", b"y", group="pay")
                await other.put("t", b"y", delay=3600)
                with pytest.raises(CallerError, match="messages wait in the topic"):
                    await other.pop("g", topic, wait=5)
                for read in (other.get, other.pull, other.pull_columns):
                    with pytest.raises(CallerError, match="messages wait in the topic"):
                        await read(topic, 0, 0)
                with pytest.raises(CallerError, match="messages wait in the topic"):
                    await other.query(topic, "k")

        asyncio.run(run())


def test_a_deleted_namespace_says_how_many_messages_went_with_it(tmp_path: Path) -> None:
    door = NamespaceDoor(tmp_path / "s")
    with kvstore.open(door.path, SMALL) as store:
        store.put_batch([Message("n%t", b"", delay=3600), Message("n%w", b"", delay=3600)])
        copy = killed(store, tmp_path / "k")
        assert store.delete_namespace("n") == 2
    deleted = CliRunner().invoke(command, ["namespace", "delete", str(copy), "n"])
    assert deleted.stdout == "2 messages that waited went with it\n"


# --- checkers ---


class Asked:
    """A checker that answers as it is told, one way after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = answers
        self.count = 0

    def __call__(self, message: StoredMessage) -> Any:
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer


EXIT: Final = SystemExit(3)
NONSENSE: Final = (ValueError("lost"), EXIT, "maybe", None, 7, "COMMIT", object(), "commit")


@pytest.mark.parametrize("is_namespace", [False, True])
def test_a_checker_that_raises_or_answers_nonsense_is_asked_again(
    tmp_path: Path, is_namespace: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ask = Asked(*NONSENSE)
    with kvstore.open(tmp_path / "s", QUICK) as store:
        calls = store.namespace("n") if is_namespace else store
        calls.create_topic("t", queues=1)
        calls.on_check("pay", ask)
        calls.prepare("t", b"x", group="pay", immunity=0)
        until(lambda: calls.bounds("t", 0).next_offset)
        assert ask.count >= len(NONSENSE)
        assert store.transactions().count == 0
    assert "ValueError: lost" in caplog.text
    for said in ("'maybe'", "None", "7", "'COMMIT'"):
        assert f"answered {said}; it must be 'commit', 'rollback' or 'unknown'" in caplog.text


@pytest.mark.parametrize("is_namespace", [False, True])
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_checker_of_asyncio_that_raises_or_answers_nonsense_is_asked_again(
    tmp_path: Path, is_namespace: bool, is_coroutine: bool
) -> None:
    ask = Asked(*NONSENSE)

    async def ask_later(message: StoredMessage) -> Any:
        await asyncio.sleep(0)
        return ask(message)

    async def run() -> None:
        async with kvstore.aio.open(tmp_path / "s", QUICK) as store:
            calls = store.namespace("n") if is_namespace else store
            await calls.create_topic("t", queues=1)
            checker = await calls.on_check("pay", ask_later if is_coroutine else ask)
            await calls.prepare("t", b"x", group="pay", immunity=0)
            for _ in range(2000):
                if (await calls.bounds("t", 0)).next_offset:
                    break
                await asyncio.sleep(0.01)
            assert ask.count >= len(NONSENSE)
            assert (await store.transactions()).count == 0
            checker.close()

    asyncio.run(run())


def test_a_coroutine_that_hangs_holds_up_neither_the_loop_nor_other_checkers(
    tmp_path: Path,
) -> None:
    async def hang(message: StoredMessage) -> Any:
        await asyncio.sleep(3600)

    async def run() -> None:
        async with kvstore.aio.open(tmp_path / "s", QUICK) as store:
            await store.create_topic("t", queues=1)
            await store.on_check("pay", hang)
            await store.prepare_batch([Message("t", b"x")] * 3, group="pay", immunity=0)
            await asyncio.sleep(0.05)
            await store.on_check("pay", lambda message: "commit")
            for _ in range(2000):
                if (await store.bounds("t", 0)).next_offset == 3:
                    break
                await asyncio.sleep(0.01)
            assert (await store.transactions()).count == 0

    asyncio.run(run())


def test_a_checker_that_can_not_be_called_in_a_thread_is_refused(tmp_path: Path) -> None:
    async def ask(message: StoredMessage) -> Any:
        return "commit"

    with kvstore.open(tmp_path / "s", SMALL) as store:
        for calls in (store, store.namespace("n")):
            for wrong, says in (("commit", "must be a function"), (ask, "use kvstore.aio")):
                with pytest.raises(kvstore.CallerError, match=says):
                    calls.on_check("pay", wrong)  # type: ignore[arg-type]
            with pytest.raises(kvstore.CallerError):
                calls.on_check("", lambda message: "commit")
