"""Namespaces: a view has the same calls and only what is its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore import (
    CallerError,
    GroupConfig,
    GroupExists,
    GroupNotFound,
    Message,
    MessageIllegal,
    MessageNotFound,
    Namespace,
    NamespaceExists,
    NamespaceNotFound,
    Store,
    StoreError,
    TopicConfig,
    TopicExists,
    TopicNotFound,
    sql,
)
from kvstore.api.calls import Calls
from kvstore.meta.namespaces import namespace_of, unwrap, wrap
from tests.support.stores import Opens

NAMES = st.text("abR%D_-", min_size=1, max_size=8)
FRONTS = st.sampled_from(["", "%RETRY%", "%DLQ%"])


@pytest.fixture
def views(store: Store) -> tuple[Namespace, Namespace]:
    """Namespaces "a" and "b", each with a topic "t" of one queue and a group "g"."""
    for name in ("a", "b"):
        store.create_namespace(
            name, topics=[TopicConfig(name="t", queues=1)], groups=[GroupConfig(name="g")]
        )
    return store.namespace("a"), store.namespace("b")


def test_what_is_no_list_or_no_message_is_refused_by_name(
    store: Store, views: tuple[Namespace, Namespace]
) -> None:
    a: Any = views[0]
    anything: Any = store
    calls: list[Callable[[], object]] = [
        lambda: anything.delete_topics(5),
        lambda: anything.delete_groups(None),
        lambda: anything.delete_topics("t"),
        lambda: anything.create_namespace("nn", ["t1"]),
        lambda: anything.create_namespace("nn", topics=5),
        lambda: anything.create_namespace("nn", groups=[TopicConfig(name="t")]),
        lambda: a.delete_topics(5),
        lambda: a.delete_groups(None),
        lambda: a.create_topics(5),
        lambda: a.create_topics(["t1"]),
        lambda: a.create_groups([5]),
        lambda: a.put_batch(5),
        lambda: a.put_batch(["t"]),
        lambda: a.commit_offsets(5),
        lambda: a.commit_offsets([("g", "t")]),
    ]
    for call in calls:
        with pytest.raises(CallerError):
            call()
    assert store.namespaces() == ["a", "b"]


def test_a_dead_letter_says_where_it_comes_from_by_the_names_of_its_namespace(
    store: Store, views: tuple[Namespace, Namespace]
) -> None:
    a, _ = views
    a.alter_group("g", max_attempts=1)
    a.put("t", b"x", properties={"DLQ": "no"})
    (popped,) = a.pop("g", "t")
    a.change_invisible(popped.receipt, 0)
    assert a.pop("g", "t") == []
    (letter,) = a.pop("g", "%DLQ%g")
    assert letter.message.properties["DLQ_ORIGIN_TOPIC"] == "t"
    assert letter.message.user_properties["DLQ_ORIGIN_GROUP"] == "g"
    outside = store.get("%DLQ%a%g", 0, 0)
    assert outside.properties["DLQ_ORIGIN_TOPIC"] == "a%t"
    assert outside == letter.message or outside.topic != letter.message.topic


def test_errors_speak_of_the_names_of_their_namespace(
    views: tuple[Namespace, Namespace],
) -> None:
    a, _ = views
    for call, said in (
        (lambda: a.pop("nope", "t"), "'nope'"),
        (lambda: a.pop("g", "%DLQ%nope"), "'%DLQ%nope'"),
        (lambda: a.topic("a%t"), "'a%t'"),
        (lambda: a.create_topic("t"), "'t'"),
        (lambda: a.create_group("what?"), "'what?'"),
        (lambda: a.put("nope", b"x"), "'nope'"),
        (lambda: a.put_batch([Message("nope", b"x")]), "'nope'"),
        (lambda: a.pull("t", 0, 0, filter=sql("x = 'a%b' AND")), "'a%b'"),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert said in str(caught.value)
        assert "a%nope" not in str(caught.value)


# --- names ---


@pytest.mark.parametrize(
    ("name", "in_store"),
    [
        ("orders", "ns%orders"),
        ("%RETRY%billing", "%RETRY%ns%billing"),
        ("%DLQ%billing", "%DLQ%ns%billing"),
        ("ns%orders", "ns%ns%orders"),
        ("other%orders", "ns%other%orders"),
        ("%RETRY%other%g", "%RETRY%ns%other%g"),
        ("%LMQ%x", "ns%%LMQ%x"),
        ("SCHEDULE_TOPIC_XXXX", "ns%SCHEDULE_TOPIC_XXXX"),
    ],
)
def test_a_name_in_a_namespace_is_rocketmqs_name_in_the_store(name: str, in_store: str) -> None:
    assert wrap("ns", name) == in_store
    assert unwrap("ns", in_store) == name
    assert namespace_of(in_store) == "ns"


@pytest.mark.parametrize("name", ["", "%DLQ%", "%RETRY%", None, 5])
def test_a_name_with_nothing_in_it_is_refused(name: Any) -> None:
    with pytest.raises(MessageIllegal):
        wrap("ns", name)


@given(NAMES, FRONTS, st.text("abR", min_size=1, max_size=3))
def test_to_every_name_there_is_one_in_the_store_and_back(
    bare: str, front: str, namespace: str
) -> None:
    name = front + bare
    in_store = wrap(namespace, name)
    assert unwrap(namespace, in_store) == name
    assert namespace_of(in_store) == namespace
    assert unwrap(namespace + "x", in_store) is None


@pytest.mark.parametrize("name", ["orders", "%DLQ%billing", "%RETRY%g", "%LMQ%x", "%a"])
def test_a_name_without_a_namespace_belongs_to_none(name: str) -> None:
    assert namespace_of(name) is None
    assert unwrap("orders", name) is None


@pytest.mark.parametrize("name", ["", "a%b", "%", "a b", "ä", "x" * 65, None, 5])
def test_a_name_that_no_namespace_can_have_is_refused(store: Store, name: Any) -> None:
    for call in (store.namespace, store.create_namespace, store.delete_namespace):
        with pytest.raises(CallerError):
            call(name)
    assert store.namespaces() == []


# --- as a whole ---


def test_a_namespace_is_made_with_topics_and_groups_or_not_at_all(
    store: Store, opens: Opens
) -> None:
    wrongs: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"topics": [TopicConfig(name="x"), TopicConfig(name="a b")]}, MessageIllegal),
        ({"topics": [TopicConfig(name="x"), TopicConfig(name="x")]}, TopicExists),
        ({"groups": [GroupConfig(name="x"), GroupConfig(name="x")]}, GroupExists),
        ({"groups": [GroupConfig(name="x", max_attempts=0)]}, CallerError),
        ({"topics": [TopicConfig(name="x")], "groups": [GroupConfig(name="")]}, MessageIllegal),
    ]
    for wrong, error in wrongs:
        with pytest.raises(error):
            store.create_namespace("ns", **wrong)
    assert store.namespaces() == []
    assert [t.name for t in store.topics()] == ["t"]
    store.create_namespace("ns", topics=[TopicConfig(name="x")], groups=[GroupConfig(name="y")])
    with pytest.raises(NamespaceExists):
        store.create_namespace("ns")
    store.create_namespace("empty")
    for _ in range(2):
        assert store.namespaces() == ["empty", "ns"]
        assert [t.name for t in store.topics()] == ["ns%x", "t"]
        assert [t.name for t in store.namespace("ns").topics()] == ["x"]
        assert [g.name for g in store.namespace("ns").groups()] == ["y"]
        empty = store.namespace("empty")
        assert (empty.topics(), empty.groups()) == ([], [])
        store.close()
        store = opens()


def test_namespaces_that_only_names_speak_of_are_listed_too(store: Store) -> None:
    for name in ("x%one", "x%two", "%RETRY%y%g", "%DLQ%z%g", "%DLQ%none", "plain"):
        store.create_topic(name)
    store.create_group("w%g")
    assert store.namespaces() == ["w", "x", "y", "z"]
    assert [t.name for t in store.namespace("y").topics()] == ["%RETRY%g"]


def test_a_deleted_namespace_leaves_nothing_and_takes_nothing_else_along(
    store: Store, views: tuple[Namespace, Namespace], opens: Opens
) -> None:
    a, b = views
    a.create_topic("%DLQ%g")
    store.create_topic("a")
    store.create_topic("aa%t")
    for view in views:
        view.put("t", b"x", message_id="one")
        view.commit_offset("g", "t", 0, 1)
    store.delete_namespace("a")
    assert store.namespaces() == ["aa", "b"]
    assert [t.name for t in store.topics()] == ["a", "aa%t", "b%t", "t"]
    assert [g.name for g in store.groups()] == ["b%g"]
    with pytest.raises(NamespaceNotFound):
        store.delete_namespace("a")
    with pytest.raises(MessageNotFound):
        a.find("one")
    assert b.find("one").body == b"x"
    assert b.committed_offset("g", "t", 0) == 1
    store.create_namespace("a", topics=[TopicConfig(name="t")], groups=[GroupConfig(name="g")])
    assert a.bounds("t", 0) == (0, 0)
    assert a.committed_offset("g", "t", 0) is None
    store.close()
    assert opens().verify().problems == []


def test_thousands_of_topics_of_a_namespace_come_and_go_in_one_call(store: Store) -> None:
    store.create_namespace("big", topics=[TopicConfig(name=f"t{i}") for i in range(3000)])
    view = store.namespace("big")
    view.put("t77", b"x", queue=0)
    assert len(view.topics()) == 3000
    store.delete_namespace("big")
    assert [t.name for t in store.topics()] == ["t"]
    assert store.namespaces() == []


# --- the view ---


def test_what_a_view_puts_it_reads_under_its_own_names(views: tuple[Namespace, Namespace]) -> None:
    a, _ = views
    result = a.put("t", b"one", queue=0, keys=["k"], tag="x", message_id="m")
    more = a.put_batch([Message("t", b"two", queue=0), Message("t", b"three", queue=0)])
    assert [r.topic for r in (result, *more)] == ["t"] * 3
    found = [
        a.get("t", 0, 0),
        *a.pull("t", 0, 0, limit=1).messages,
        *a.query("t", "k"),
        a.find("m"),
        a.find(a.get("t", 0, 0).position_id),
        a.read_at(result.position),
    ]
    assert [(m.topic, m.body) for m in found] == [("t", b"one")] * 6
    assert a.bounds("t", 0) == (0, 3)
    assert a.offset_at("t", 0, 0) == 0


def test_topics_groups_and_offsets_of_a_view_have_its_own_names(
    views: tuple[Namespace, Namespace], store: Store
) -> None:
    a, _ = views
    a.put("t", b"x")
    assert a.create_topic("u", 3, kind="fifo").name == "u"
    assert a.create_topics([TopicConfig(name="v")])[0].name == "v"
    assert a.alter_topic("u", queues=5).write_queues == 5
    assert a.topic("u").read_queues == 5
    made = a.create_group("h", dead_letter_topic="dead", backoff=[1, 2])
    assert (made.name, made.dead_letter_topic, made.dead_letters) == ("h", "dead", "dead")
    assert store.group("a%h").dead_letter_topic == "a%dead"
    assert a.group("g").dead_letters == "%DLQ%g"
    assert store.group("a%g").dead_letters == "%DLQ%a%g"
    assert a.alter_group("h", dead_letter_topic="%DLQ%x").dead_letter_topic == "%DLQ%x"
    assert store.group("a%h").dead_letter_topic == "%DLQ%a%x"
    assert list(a.group("h").former_dead_letters) == ["dead"]
    assert list(store.group("a%h").former_dead_letters) == ["a%dead"]
    assert a.create_groups([GroupConfig(name="i", dead_letter_topic="d")])[0].dead_letters == "d"
    a.commit_offset("g", "t", 0, 1)
    a.commit_offsets([("h", "t", 0, 0)])
    assert [(lag.group, lag.topic, lag.lag) for lag in a.lag("g")] == [("g", "t", 0)]
    assert a.reset_offset("g", "t", to="begin") == {0: 0}
    assert a.offset_history("g", "t", 0)[-1].offset == 0
    a.delete_groups(["h", "i"])
    a.delete_topics(["u", "v"])
    assert [t.name for t in a.topics()] == ["t"]
    assert [g.name for g in a.groups()] == ["g"]


@pytest.mark.parametrize(
    "read",
    [
        lambda a, name: a.get(name, 0, 0),
        lambda a, name: a.pull(name, 0, 0),
        lambda a, name: a.query(name, "k"),
        lambda a, name: a.bounds(name, 0),
        lambda a, name: a.offset_at(name, 0, 0),
        lambda a, name: a.topic(name),
        lambda a, name: a.alter_topic(name, queues=3),
        lambda a, name: a.delete_topic(name),
        lambda a, name: a.delete_topics([name]),
        lambda a, name: a.put(name, b"x"),
        lambda a, name: a.put_batch([Message(name, b"x")]),
        lambda a, name: a.commit_offset("g", name, 0, 0),
        lambda a, name: a.commit_offsets([("g", name, 0, 0)]),
        lambda a, name: a.committed_offset("g", name, 0),
        lambda a, name: a.offset_history("g", name, 0),
        lambda a, name: a.reset_offset("g", name, to="end"),
        lambda a, name: a.lag("g", name),
        lambda a, name: a.pop("g", name),
    ],
)
@pytest.mark.parametrize("name", ["only", "b%only", "%DLQ%b%only", "plain"])
def test_a_view_can_not_name_another_namespaces_topic_nor_one_of_none(
    views: tuple[Namespace, Namespace],
    store: Store,
    read: Callable[[Namespace, str], object],
    name: str,
) -> None:
    a, b = views
    for topic in ("b%only", "%DLQ%b%only", "plain"):
        store.create_topic(topic, queues=1)
    b.put("only", b"secret", keys=["k"])
    before = store.topics()
    with pytest.raises(TopicNotFound):
        read(a, name)
    assert store.topics() == before


@pytest.mark.parametrize("name", ["only", "b%only", "plain"])
def test_a_view_can_not_name_another_namespaces_group(
    views: tuple[Namespace, Namespace], store: Store, name: str
) -> None:
    a, b = views
    b.create_group("only")
    store.create_group("plain")
    calls: list[Callable[[], object]] = [
        lambda: a.group(name),
        lambda: a.alter_group(name, max_attempts=3),
        lambda: a.delete_group(name),
        lambda: a.delete_groups([name]),
        lambda: a.lag(name),
        lambda: a.offset_history(name, "t", 0),
        lambda: a.reset_offset(name, "t", to="end"),
        lambda: a.pop(name, "t"),
    ]
    before = store.groups()
    for call in calls:
        with pytest.raises(GroupNotFound):
            call()
    assert a.committed_offset(name, "t", 0) is None
    assert store.groups() == before


def test_the_same_id_key_and_names_in_two_namespaces_are_two_messages(
    views: tuple[Namespace, Namespace], store: Store
) -> None:
    a, b = views
    first = a.put("t", b"of a", message_id="same", keys=["k"])
    second = b.put("t", b"of b", message_id="same", keys=["k"])
    for _ in range(2):
        assert (a.find("same").body, b.find("same").body) == (b"of a", b"of b")
        assert [m.body for m in a.query("t", "k")] == [b"of a"]
        with pytest.raises(MessageNotFound):
            a.read_at(second.position)
        with pytest.raises(MessageNotFound):
            a.find(b.get("t", 0, 0).position_id)
        assert b.read_at(second.position).body == b"of b"
        assert first.position < second.position
        store.checkpoint()
    with pytest.raises(TopicExists):
        a.create_topic("t")


@pytest.mark.parametrize("is_put_before", [True, False], ids=["checkpoint", "tail"])
def test_a_message_that_waits_is_found_as_by_the_store_and_by_its_own_namespace_alone(
    views: tuple[Namespace, Namespace], store: Store, *, is_put_before: bool
) -> None:
    a, b = views
    delayed = a.put("t", b"later", delay=600, message_id="later")
    prepared = a.prepare("t", b"maybe", group="pay", message_id="maybe")
    b.put("t", b"of b", delay=600, message_id="later")
    b.prepare("t", b"of b", group="pay", message_id="maybe")
    if is_put_before:
        store.checkpoint()
    for put, waits in (delayed, a.timer("later")), (prepared, a.prepared("maybe")):
        whole = store.read_at(put.position)
        position_id = whole.position_id
        assert whole.properties["REAL_TOPIC"] == "a%t"
        for found in (a.find(put.message_id), a.find(position_id), a.read_at(put.position)):
            assert (found.topic, found.body) == (whole.topic, whole.body)
            assert found.position == whole.position
            assert found == waits.message
            assert found.properties["REAL_TOPIC"] == "t"
            assert found.properties.get("PGROUP") in (None, "pay")
        assert b.find(put.message_id).body == b"of b"
        with pytest.raises(MessageNotFound):
            b.find(position_id)
        with pytest.raises(MessageNotFound):
            b.read_at(put.position)
    assert a.cancel("later")
    a.rollback("maybe")
    for message_id in ("later", "maybe"):
        note = a.find(message_id)
        assert (note.body, note.properties["REAL_TOPIC"]) == (b"", "t")
        assert not any("a%" in value for value in note.properties.values())
        assert b.find(message_id).body == b"of b"
    b.commit("maybe")
    assert b.find("maybe").topic == "t"
    with pytest.raises(MessageNotFound):
        store.namespace("nobody").find("later")


def test_a_view_has_every_call_of_the_store_that_is_about_messages_topics_or_groups() -> None:
    own = {
        "namespaces",
        "create_namespace",
        "delete_namespace",
        "topics_of",
        "groups_of",
        "find_in",
        "cancel_in",
        "change_delay_in",
        "timer_in",
        "timers_in",
        "commit_in",
        "rollback_in",
        "transactions_in",
        "prepared_in",
        "schedules_in",
        "export_rocketmq",
        "import_rocketmq_config",
    }
    calls = {name for name, _ in inspect.getmembers(Calls, callable) if not name.startswith("_")}
    views = {name for name, _ in inspect.getmembers(Namespace, callable)}
    assert calls - own <= views


def test_a_view_has_the_signatures_of_the_store(views: tuple[Namespace, Namespace]) -> None:
    for name, call in inspect.getmembers(Namespace, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(call) == inspect.signature(getattr(Store, name)), name


def test_a_name_may_be_given_by_its_keyword(views: tuple[Namespace, Namespace]) -> None:
    a, b = views
    a.put(topic="t", body=b"x")
    assert [p.message.topic for p in a.pop(topic="t", group="g")] == ["t"]
    assert b.pop(topic="t", group="g") == []
    assert [stats.topic for stats in a.group_stats(group="g", topic="t")] == ["t"]
    assert a.create_group("h", dead_letter_topic="dead").dead_letter_topic == "dead"
