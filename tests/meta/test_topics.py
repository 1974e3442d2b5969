"""Topics, groups and committed offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kvstore import (
    CallerError,
    GroupConfig,
    GroupExists,
    GroupNotFound,
    Message,
    MessageIllegal,
    MessageNotFound,
    NamespaceExists,
    OffsetNotFound,
    QueueNotEmpty,
    QueueNotFound,
    Retention,
    Store,
    StoreConfig,
    TopicConfig,
    TopicExists,
    TopicNotFound,
    rebuild,
)
from kvstore.index.keys import GROUPS, PLACES, RUNS, TOPICS
from kvstore.meta.groups import DEFAULT_BACKOFF
from tests.support import inside
from tests.support.segment_files import batch, bodies
from tests.support.stores import SEGMENT, SMALL, Opens


def test_a_topic_is_made_with_what_was_asked_for_and_comes_back(opens: Opens) -> None:
    store = opens()
    retention = Retention(hot_for=1.5, max_bytes=1 << 40)
    made = store.create_topic(
        "t", queues=7, kind="fifo", key_index="unique", retention=retention, attributes={"a": "ä"}
    )
    assert (made.name, made.read_queues, made.write_queues, made.kind) == ("t", 7, 7, "fifo")
    assert (made.key_index, made.retention, made.attributes) == ("unique", retention, {"a": "ä"})
    store.close()
    again = opens()
    assert again.topic("t") == made
    assert again.topics() == [made]


def test_a_topic_has_four_queues_by_itself(store: Store) -> None:
    assert store.create_topic("u").read_queues == 4


def test_a_kind_that_there_is_not_is_refused(store: Store) -> None:
    kind: Any = "urgent"
    makes: list[Callable[[], object]] = [
        lambda: store.create_topic("u", kind=kind),
        lambda: store.create_topics([TopicConfig(name="v"), TopicConfig(name="u", kind=kind)]),
        lambda: store.namespace("n").create_topic("u", kind=kind),
        lambda: store.create_namespace("n", topics=[TopicConfig(name="u", kind=kind)]),
    ]
    for make in makes:
        with pytest.raises(CallerError, match="kind is 'urgent'; it must be one of normal, fifo"):
            make()
    assert [t.name for t in store.topics()] == ["t"]
    assert store.namespaces() == []


def test_what_exists_may_be_made_again_and_stays_as_it_is(opens: Opens) -> None:
    store = opens()
    topic = store.create_topic("u", queues=7, kind="fifo", exist_ok=True)
    group = store.create_group("g", ordered=True, exist_ok=True)
    for _ in range(2):
        assert store.create_topic("u", queues=3, exist_ok=True) == topic
        assert store.create_group("g", max_attempts=2, exist_ok=True) == group
        with pytest.raises(TopicExists, match="exist_ok=True"):
            store.create_topic("u")
        with pytest.raises(GroupExists, match="exist_ok=True"):
            store.create_group("g")
        store.close()
        store = opens()
    assert (store.topic("u"), store.group("g")) == (topic, group)


def test_of_many_those_that_exist_stay_and_the_others_are_made_in_order(store: Store) -> None:
    old = store.create_topics([TopicConfig(name=name) for name in "bd"])
    configs = [TopicConfig(name=name, queues=2) for name in "abcd"]
    found = store.create_topics(configs, exist_ok=True)
    assert [info.name for info in found] == ["a", "b", "c", "d"]
    assert [info.read_queues for info in found] == [2, 4, 2, 4]
    assert found[1::2] == old
    assert len({info.id for info in found}) == 4
    assert found == [store.topic(name) for name in "abcd"]
    made = store.create_groups([GroupConfig(name="b")])
    both = store.create_groups([GroupConfig(name=name) for name in "ab"], exist_ok=True)
    assert both == [store.group("a"), made[0]]
    assert store.create_topics(iter(configs), exist_ok=True) == found
    assert store.create_topics([], exist_ok=True) == []
    assert store.create_groups([], exist_ok=True) == []


def test_exist_ok_excuses_nothing_else(store: Store) -> None:
    group = GroupConfig(name="g")
    wrong: list[Callable[[], object]] = [
        lambda: store.create_topic("t", queues=0, exist_ok=True),
        lambda: store.create_topics([TopicConfig(name="u")] * 2, exist_ok=True),
        lambda: store.create_topics(["t"], exist_ok=True),  # type: ignore[list-item]  # the point
        lambda: store.create_groups([group, group], exist_ok=True),
        lambda: store.create_group("g", max_attempts=0, exist_ok=True),
    ]
    for make in wrong:
        with pytest.raises(CallerError):
            make()
    assert [t.name for t in store.topics()] == ["t"]
    assert store.groups() == []


def test_a_namespace_that_exists_may_be_made_again_with_more(store: Store) -> None:
    with pytest.raises(CallerError):
        store.create_namespace("n", topics=[TopicConfig(name="bad name")], exist_ok=True)
    assert store.namespaces() == []
    for topics, groups in (("a", "g"), ("ab", "gh"), ("", ""), ("b", "h")):
        store.create_namespace(
            "n",
            topics=[TopicConfig(name=name, queues=len(topics)) for name in topics],
            groups=[GroupConfig(name=name) for name in groups],
            exist_ok=True,
        )
    view = store.namespace("n")
    assert [(t.name, t.read_queues) for t in view.topics()] == [("a", 1), ("b", 2)]
    assert [g.name for g in view.groups()] == ["g", "h"]
    assert view.create_topic("a", exist_ok=True) == view.topic("a")
    assert view.create_topics([TopicConfig(name="a")], exist_ok=True) == [view.topic("a")]
    assert view.create_group("g", exist_ok=True) == view.group("g")
    assert view.create_groups([GroupConfig(name="g")], exist_ok=True) == [view.group("g")]
    with pytest.raises(NamespaceExists, match="exist_ok=True"):
        store.create_namespace("n")
    assert store.namespaces() == ["n"]


@pytest.mark.parametrize("queues", [0, -1, 65537, 1.5, "4", None, True])
def test_a_number_of_queues_out_of_range_is_refused(store: Store, queues: Any) -> None:
    with pytest.raises(CallerError):
        store.create_topic("u", queues=queues)
    if queues is not None:
        with pytest.raises(CallerError):
            store.alter_topic("t", queues=queues)
    assert [t.name for t in store.topics()] == ["t"]
    assert store.topic("t").read_queues == 4


def test_a_topic_may_have_65536_queues(store: Store) -> None:
    store.create_topic("u", queues=65536)
    assert store.put("u", b"x", queue=65535).offset == 0


@pytest.mark.parametrize("name", ["", "a" * 128, "a b", "ä", "a/b", "\ud800", None, 5, b"t", ["t"]])
def test_a_name_that_can_not_be_one_makes_no_topic(store: Store, name: Any) -> None:
    with pytest.raises(MessageIllegal):
        store.create_topic(name)
    with pytest.raises(MessageIllegal):
        store.create_topics([TopicConfig(name="fine"), TopicConfig(name=name)])
    assert [t.name for t in store.topics()] == ["t"]


@pytest.mark.parametrize(
    "field",
    [
        {"kind": "banana"},
        {"kind": None},
        {"compress_above": -1},
        {"compress_above": 1.5},
        {"compress_above": True},
        {"compression": "gzip"},
        {"compression": 5},
        {"compression": ["zstd"]},
        {"key_index": "some"},
        {"key_index": 5},
        {"attributes": {"a": 1}},
        {"attributes": {1: "a"}},
        {"attributes": {"a": None}},
        {"attributes": {"a": "\ud800"}},
        {"retention": 5},
        {"retention": {"hot_for": 5}},
        {"retention": Retention(hot_for="long")},  # type: ignore[arg-type]  # what is wrong with it
        {"retention": Retention(hot_for=-1)},
        {"retention": Retention(max_bytes=1.5)},  # type: ignore[arg-type]  # likewise
        {"retention": Retention(hot_for=float("nan"))},
    ],
    ids=str,
)
def test_a_setting_of_a_topic_that_is_none_is_refused_and_changes_nothing(
    store: Store, opens: Opens, field: dict[str, Any]
) -> None:
    before = store.topics()
    with pytest.raises(CallerError):
        store.create_topic("u", **field)
    if "kind" not in field:
        with pytest.raises(CallerError):
            store.alter_topic("t", **field)
    assert store.topics() == before
    store.close()
    assert opens().topics() == before


def test_a_topic_that_is_there_is_not_made_again(store: Store) -> None:
    before = store.topic("t")
    with pytest.raises(TopicExists):
        store.create_topic("t", queues=9)
    assert store.topic("t") == before


@pytest.mark.parametrize("names", [["a", "b", "a"], ["a", "t"], ["t"]])
def test_of_topics_with_one_that_is_there_none_is_made(store: Store, names: list[str]) -> None:
    with pytest.raises(TopicExists):
        store.create_topics([TopicConfig(name=name) for name in names])
    assert [t.name for t in store.topics()] == ["t"]
    assert store.create_topic("next").id == store.topic("t").id + 1


def test_thousands_of_topics_are_made_in_one_call_and_an_empty_queue_costs_nothing(
    opens: Opens,
) -> None:
    store = opens()
    made = store.create_topics(TopicConfig(name=f"t{i:04}", queues=8) for i in range(1000))
    assert len({t.id for t in made}) == 1000
    assert store.topics() == made
    assert store.stats().topics == 1000
    store.checkpoint()
    for topic in range(0, 1000, 100):
        assert store.bounds(f"t{topic:04}", 7) == (0, 0)
        assert store.pull(f"t{topic:04}", 3, 0).messages == []
    store.seal()
    families = inside.families(store)
    assert list(families.rows(RUNS, b"")) == list(families.rows(PLACES, b"")) == []
    store.put("t0500", b"x", queue=5)
    store.checkpoint()
    assert len(list(families.rows(RUNS, b""))) == len(list(families.rows(PLACES, b""))) == 1
    store.close()
    again = opens()
    assert again.topics() == made
    assert bodies(again, "t0500", 5) == [b"x"]


def test_topics_are_listed_by_name(store: Store) -> None:
    store.create_topics([TopicConfig(name=n) for n in ("b", "a", "z", "B")])
    assert [t.name for t in store.topics()] == ["B", "a", "b", "t", "z"]


def test_a_missing_topic_is_made_at_a_put_if_the_store_does_so(opens: Opens) -> None:
    config = StoreConfig(
        segment_size=SEGMENT, auto_create_topics=True, default_queues=3, key_index="unique"
    )
    store = opens(config)
    store.put_batch([Message("new", b"x", queue=2), Message("newer", b"y", queue=0)])
    info = store.topic("new")
    assert (info.read_queues, info.write_queues, info.key_index) == (3, 3, "unique")
    assert bodies(store, "new", 2) == [b"x"]
    for call in (lambda: store.get("other", 0, 0), lambda: store.pull("other", 0, 0)):
        with pytest.raises(TopicNotFound):
            call()
    with pytest.raises(MessageIllegal):
        store.put("not a topic", b"")
    assert [t.name for t in store.topics()] == ["new", "newer"]


# --- altering ---


def test_a_topic_that_grows_has_new_queues_at_once(store: Store) -> None:
    store.alter_topic("t", queues=6)
    assert store.put("t", b"x", queue=5).offset == 0
    assert {store.put("t", b"").queue for _ in range(12)} == set(range(6))


def test_queues_that_are_taken_away_stay_readable_but_take_no_messages(
    store: Store, opens: Opens
) -> None:
    store.put_batch([Message("t", str(q).encode(), queue=q, keys=["k"]) for q in range(4)])
    info = store.alter_topic("t", queues=2)
    assert (info.read_queues, info.write_queues) == (4, 2)
    for _ in range(2):
        assert store.get("t", 3, 0).body == b"3"
        assert len(store.query("t", "k")) == 4
        with pytest.raises(CallerError):
            store.put("t", b"", queue=2)
        assert {store.put("t", b"").queue for _ in range(6)} == {0, 1}
        assert {store.put("t", b"", message_group=f"g{i}").queue for i in range(20)} == {0, 1}
        store.close()
        store = opens()
    store.alter_topic("t", queues=4)
    assert store.put("t", b"again", queue=3).offset == 1
    assert bodies(store, "t", 3) == [b"3", b"again"]


def test_what_is_not_given_stays_when_a_topic_is_altered(store: Store) -> None:
    store.alter_topic("t", attributes={"a": "b"}, retention=Retention(hot_for=5))
    info = store.alter_topic("t", key_index="off")
    assert (info.attributes, info.retention, info.key_index) == (
        {"a": "b"},
        Retention(hot_for=5),
        "off",
    )
    assert (info.read_queues, info.since) == (4, 0)
    assert store.alter_topic("t") == info


def test_queues_that_are_empty_can_be_taken_from_readers_others_can_not(
    store: Store, opens: Opens
) -> None:
    store.put_batch([Message("t", b"x", queue=q) for q in (0, 2)])
    with pytest.raises(QueueNotEmpty) as refused:
        store.alter_topic("t", queues=1, read_queues=2)
    assert refused.value.queue == 2
    assert (store.topic("t").write_queues, store.topic("t").read_queues) == (4, 4)
    info = store.alter_topic("t", queues=1, read_queues=3)
    assert (info.write_queues, info.read_queues) == (1, 3)
    with pytest.raises(QueueNotFound):
        store.pull("t", 3, 0)
    assert store.get("t", 2, 0).body == b"x"
    store.close()
    again = opens()
    assert again.topic("t") == info
    assert bodies(again, "t", 2) == [b"x"]


def test_a_topic_may_have_more_queues_for_readers_but_not_fewer(store: Store) -> None:
    made = store.create_topic("u", queues=2, read_queues=5)
    assert (made.write_queues, made.read_queues) == (2, 5)
    assert store.alter_topic("u", write_queues=3).write_queues == 3
    assert store.alter_topic("u", queues=4, read_queues=9).read_queues == 9
    before = store.topics()
    for wrong in (
        {"read_queues": 3},
        {"queues": 6, "read_queues": 5},
        {"queues": 5, "write_queues": 5},
        {"read_queues": 0},
        {"read_queues": 65537},
        {"read_queues": "9"},
        {"write_queues": 1.5},
    ):
        with pytest.raises(CallerError):
            store.alter_topic("u", **wrong)
    with pytest.raises(CallerError):
        store.create_topic("v", queues=4, read_queues=3)
    assert store.topics() == before


def test_a_queue_taken_from_readers_comes_back_where_it_was(store: Store, opens: Opens) -> None:
    store.put_batch(batch("t", 3, queue=3))
    store.seal()
    store.put("t", b"later", queue=0)
    store.checkpoint()
    inside.index(store).retire(0, SEGMENT, inside.log(store).segments.numbers)
    inside.log(store).segments.remove(0, erase=False)
    store.alter_topic("t", queues=2, read_queues=2)
    store.close()
    again = opens()
    again.alter_topic("t", queues=4)
    assert again.bounds("t", 3) == (3, 3)
    assert again.put("t", b"x", queue=3).offset == 3


def test_a_message_put_to_a_queue_just_before_readers_lost_it_is_there_after_a_crash(
    store: Store, opens: Opens
) -> None:
    """A put that was under way: what it wrote belongs to the topic, not to damage."""
    store.put("t", b"kept", queue=3)
    topics = inside.topics(store)
    topics.alter("t", {}, queues=2, read_queues=2)  # as if queue 3 had been empty a moment before
    store.flush()
    rebuild_from_log(store)
    again = opens()
    assert again.recovery.damage == []
    assert bodies(again, "t", 3) == [b"kept"]


def rebuild_from_log(store: Store) -> None:
    store.close()
    rebuild(store.path, SMALL)


# --- settings of their own ---


def test_compression_is_set_per_topic_and_taken_back(store: Store, opens: Opens) -> None:
    made = store.create_topic("u", compress_above=100, compression="lz4")
    assert (made.compress_above, made.compression) == (100, "lz4")
    used = inside.topics(store).get("u").info
    assert (used.compress_above, used.compression) == (100, "lz4")
    assert store.alter_topic("u", queues=2) == msgspec.structs.replace(made, write_queues=2)
    info = store.alter_topic("u", compress_above=None)
    assert (info.compress_above, info.compression) == (None, "lz4")
    store.alter_topic("u", compression="zstd", compress_above=0)
    store.close()
    info = opens().topic("u")
    assert (info.compress_above, info.compression) == (0, "zstd")


def test_a_row_of_a_topic_of_before_its_newer_settings_is_read(store: Store, opens: Opens) -> None:
    store.put("t", b"x", queue=3)
    row = msgspec.msgpack.decode(msgspec.msgpack.encode(store.topic("t")))
    for name in ("compress_above", "compression", "queues_ever"):
        del row[name]
    families = inside.families(store)
    rows = families.batch()
    rows.put(TOPICS, b"t", msgspec.msgpack.encode(row))
    families.write(rows)
    store.close()
    again = opens()
    info = again.topic("t")
    assert (info.compress_above, info.compression, info.read_queues) == (None, None, 4)
    assert again.alter_topic("t", queues=2).queues_ever == 4
    assert bodies(again, "t", 3) == [b"x"]


def test_changing_one_topic_of_many_writes_one_row(store: Store) -> None:
    store.create_topics(TopicConfig(name=f"t{i}") for i in range(2000))
    database = inside.database(store)
    before = database.latest_sequence_number()
    store.alter_topic("t7", queues=2)
    assert database.latest_sequence_number() - before == 2, "the row, and the next topic's id"


# --- key index ---


@pytest.mark.parametrize("default", ["all", "unique", "off"])
@pytest.mark.parametrize("own", [None, "all", "unique", "off"])
def test_what_is_found_by_key_follows_the_topics_setting(
    opens: Opens, default: Any, own: Any
) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, key_index=default))
    store.create_topic("t", key_index=own)
    store.put_batch(
        [Message("t", b"x", queue=0, keys=["k"], message_id=f"id{i}") for i in range(3)]
    )
    mode = own or default
    position_id = store.get("t", 0, 1).position_id

    def check(store: Store) -> None:
        assert len(store.query("t", "k")) == (3 if mode == "all" else 0)
        assert len(store.query("t", "id1")) == (0 if mode == "off" else 1)
        if mode == "off":
            with pytest.raises(MessageNotFound):
                store.find("id1")
        else:
            assert store.find("id1").offset == 1
        assert store.find(position_id).offset == 1
        assert store.verify().problems == []

    check(store)
    store.checkpoint()
    check(store)
    store.seal()
    check(store)
    store.close()
    rebuild(store.path, SMALL)
    check(opens())


@pytest.mark.parametrize(
    ("before", "after"), [("off", "all"), ("unique", "all"), ("all", "off"), ("off", "unique")]
)
def test_a_changed_key_index_holds_from_then_on_and_is_no_problem(
    store: Store, before: Any, after: Any
) -> None:
    store.alter_topic("t", key_index=before)
    store.put("t", b"old", queue=0, keys=["k"])
    store.checkpoint()
    store.alter_topic("t", key_index=after)
    store.put("t", b"new", queue=0, keys=["k"])
    store.checkpoint()
    found = [m.body for m in store.query("t", "k")]
    assert (b"new" in found, b"old" in found) == (after == "all", before == "all")
    assert store.verify().problems == []


# --- deleting ---


def put_into(store: Store, state: str) -> None:
    """Five messages in "t" and in "other", brought into a state."""
    store.put_batch(batch("t", 5, keys=["k"]) + batch("other", 5, keys=["k"]))
    if state != "tail":
        store.checkpoint()
    if state == "sealed":
        store.seal()
    if state == "mixed":
        store.put_batch(batch("t", 5, keys=["k"]))


@pytest.mark.parametrize("state", ["tail", "checkpointed", "sealed", "mixed"])
@pytest.mark.parametrize("again", ["open", "reopened", "rebuilt"])
def test_a_topic_deleted_and_made_again_starts_clean(opens: Opens, state: str, again: str) -> None:
    store = opens()
    store.create_topics([TopicConfig(name="t"), TopicConfig(name="other")])
    put_into(store, state)
    old = store.get("t", 0, 2)
    store.commit_offset("g", "t", 0, 3)
    store.delete_topic("t")

    def is_gone(store: Store) -> None:
        for text in (old.message_id, old.position_id):
            with pytest.raises(MessageNotFound):
                store.find(text)
        assert len(store.query("other", "k")) == 5
        assert bodies(store, "other", 0) == [b"0", b"1", b"2", b"3", b"4"]
        assert store.verify().problems == []

    def next_store(store: Store) -> Store:
        if again != "open":
            store.close()
            if again == "rebuilt":
                rebuild(store.path, SMALL)
            return opens()
        return store

    store = next_store(store)
    with pytest.raises(TopicNotFound):
        store.get("t", 0, 0)
    assert [t.name for t in store.topics()] == ["other"]
    is_gone(store)
    store.create_topic("t", queues=2)
    for _ in range(2):
        assert store.bounds("t", 0) == (0, 0)
        assert store.query("t", "k") == store.query("t", old.message_id) == []
        assert store.committed_offset("g", "t", 0) is None
        with pytest.raises(OffsetNotFound):
            store.get("t", 0, 0)
        with pytest.raises(QueueNotFound):
            store.get("t", 3, 0)
        is_gone(store)
        store = next_store(store)
    assert store.put("t", b"new", queue=0, keys=["k"]).offset == 0
    for _ in range(2):
        assert [m.body for m in store.query("t", "k")] == [b"new"]
        assert bodies(store, "t", 0) == [b"new"]
        is_gone(store)
        store = next_store(store)


def test_a_topic_that_is_not_there_can_not_be_deleted(store: Store) -> None:
    store.delete_topic("t")
    with pytest.raises(TopicNotFound):
        store.delete_topic("t")


@pytest.mark.parametrize("names", [["a", "b", "none"], ["none", "a"], ["a b"], "a"])
def test_of_topics_with_one_that_is_not_there_none_is_deleted(store: Store, names: Any) -> None:
    store.create_topics([TopicConfig(name="a"), TopicConfig(name="b")])
    with pytest.raises(CallerError):
        store.delete_topics(names)
    assert [t.name for t in store.topics()] == ["a", "b", "t"]


def test_topics_deleted_in_one_call_leave_no_row_of_theirs(store: Store) -> None:
    names = [f"t{i}" for i in range(20)]
    store.create_topics(TopicConfig(name=name, queues=2) for name in names)
    for sealed in (False, True):
        store.put_batch([m for name in ["t", *names[:15]] for m in batch(name, 2)])
        if sealed:
            store.seal()
        store.checkpoint()
    store.put_batch([m for name in names[:5] for m in batch(name, 1)])
    store.commit_offsets([("g", name, 0, 1) for name in names[:5]])
    store.delete_topics([*names, names[3]])
    families = inside.families(store)
    ids = {store.topic("t").id.to_bytes(4, "big")}
    assert {key[4:8] for key, _ in families.rows(RUNS, b"")} == ids
    assert {key[:4] for key, _ in families.rows(PLACES, b"")} == ids
    assert [t.name for t in store.topics()] == ["t"]
    assert store.verify().problems == []


def test_a_topic_deleted_many_times_over_stays_clean(store: Store, opens: Opens) -> None:
    for i in range(6):
        store.put_batch(batch("t", 3, keys=["k"]))
        if i % 2:
            store.seal()
        store.delete_topic("t")
        store.create_topic("t")
    store.put("t", b"last", queue=0, keys=["k"])
    store.close()
    again = opens()
    assert bodies(again, "t", 0) == [b"last"]
    again.close()
    rebuild(again.path, SMALL)
    final = opens()
    assert bodies(final, "t", 0) == [b"last"]
    assert [m.body for m in final.query("t", "k")] == [b"last"]
    assert final.verify().problems == []


# --- groups and offsets ---


def test_a_group_is_made_with_what_was_asked_for_and_comes_back(opens: Opens) -> None:
    store = opens()
    made = store.create_group("billing", max_attempts=3, ordered=True, attributes={"a": "b"})
    assert (made.name, made.max_attempts, made.ordered, made.attributes) == (
        "billing",
        3,
        True,
        {"a": "b"},
    )
    with pytest.raises(GroupExists):
        store.create_group("billing")
    store.close()
    again = opens()
    assert again.group("billing") == made
    assert again.groups() == [made]
    with pytest.raises(GroupNotFound):
        again.group("other")


@pytest.mark.parametrize("name", ["", "g" * 121, "a b", "ä", "\ud800", None, 5, ["g"]])
def test_a_name_that_can_not_be_one_makes_no_group(store: Store, name: Any) -> None:
    with pytest.raises(MessageIllegal):
        store.create_group(name)
    with pytest.raises(MessageIllegal):
        store.commit_offset(name, "t", 0, 0)
    assert store.groups() == []


def test_a_group_name_may_have_120_characters(store: Store) -> None:
    assert store.create_group("g" * 120).max_attempts == 16


def test_a_group_has_all_it_was_made_with_and_what_is_not_given_stays(opens: Opens) -> None:
    store = opens()
    made = store.create_group(
        "g",
        backoff=[0, 1.5, 60],
        dead_letter_topic="dead",
        start=1_700_000_000_000,
        max_in_flight=100,
    )
    assert made.backoff == (0.0, 1.5, 60.0)
    assert (made.dead_letter_topic, made.dead_letters) == ("dead", "dead")
    assert (made.start, made.max_in_flight) == (1_700_000_000_000, 100)
    assert [made.backoff_after(n) for n in (1, 2, 3, 4, 1000)] == [0, 1.5, 60, 60, 60]
    changed = store.alter_group("g", max_attempts=5)
    assert changed == msgspec.structs.replace(made, max_attempts=5)
    store.close()
    again = opens()
    assert again.group("g") == changed
    back = again.alter_group(
        "g", backoff=None, dead_letter_topic=None, start="end", max_in_flight=None
    )
    assert back.backoff == DEFAULT_BACKOFF
    assert (back.dead_letters, back.start, back.max_in_flight) == ("%DLQ%g", "end", None)
    assert back.max_attempts == 5


def test_a_row_of_a_group_of_before_its_newer_settings_is_read(opens: Opens) -> None:
    store = opens()
    made = store.create_group("g", max_attempts=3)
    old = {"name": "g", "id": made.id, "max_attempts": 3, "ordered": False, "attributes": {}}
    families = inside.families(store)
    rows = families.batch()
    rows.put(GROUPS, b"g", msgspec.msgpack.encode(old))
    families.write(rows)
    store.close()
    assert opens().group("g") == made


def test_thousands_of_groups_come_and_go_in_one_call(opens: Opens) -> None:
    store = opens()
    made = store.create_groups(GroupConfig(name=f"g{i:04}") for i in range(3000))
    assert store.groups() == made
    assert len({g.id for g in made}) == 3000
    store.close()
    store = opens()
    store.delete_groups([g.name for g in made[:2999]])
    assert [g.name for g in store.groups()] == ["g2999"]
    assert store.create_group("g0000").id > made[-1].id


@pytest.mark.parametrize("names", [["a", "b", "a"], ["a", "g"], ["a", "a b"], ["a", None]])
def test_of_groups_with_one_that_can_not_be_made_none_is(store: Store, names: list[Any]) -> None:
    store.create_group("g")
    with pytest.raises(CallerError):
        store.create_groups([GroupConfig(name=name) for name in names])
    with pytest.raises(CallerError):
        store.create_groups(["a"])  # type: ignore[list-item]  # no configuration
    assert [g.name for g in store.groups()] == ["g"]
    with pytest.raises(GroupNotFound):
        store.delete_groups(["g", "none"])
    assert [g.name for g in store.groups()] == ["g"]


@pytest.mark.parametrize(
    "field",
    [
        {"backoff": [1] * 65},
        {"backoff": [1, -1]},
        {"backoff": [float("nan")]},
        {"backoff": [float("inf")]},
        {"backoff": [366 * 86400]},
        {"backoff": ["1"]},
        {"backoff": [True]},
        {"backoff": 5},
        {"backoff": "15"},
        {"dead_letter_topic": "a b"},
        {"dead_letter_topic": ""},
        {"dead_letter_topic": 5},
        {"dead_letter_topic": "SCHEDULE_TOPIC_XXXX"},
        {"start": "middle"},
        {"start": -1},
        {"start": 1 << 63},
        {"start": 1.5},
        {"start": True},
        {"start": ["begin"]},
        {"dead_letter_expired": 1},
        {"dead_letter_expired": "yes"},
        {"max_in_flight": 0},
        {"max_in_flight": 1.5},
        {"max_in_flight": True},
        {"max_in_flight": "9"},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"ordered": "yes"},
        {"ordered": 1},
        {"attributes": {"a": 1}},
        {"attributes": {1: "a"}},
    ],
    ids=str,
)
def test_a_setting_of_a_group_that_is_none_is_refused(
    store: Store, opens: Opens, field: dict[str, Any]
) -> None:
    with pytest.raises(CallerError):
        store.create_group("g", **field)
    with pytest.raises(CallerError):
        store.create_groups([GroupConfig(name="fine"), GroupConfig(name="g", **field)])
    assert store.groups() == []
    before = store.create_group("h")
    with pytest.raises(CallerError):
        store.alter_group("h", **field)
    store.close()
    assert opens().groups() == [before]


def test_a_committed_offset_is_kept_per_group_and_queue(store: Store, opens: Opens) -> None:
    store.put_batch(batch("t", 5) + batch("t", 3, queue=1))
    assert store.committed_offset("g", "t", 0) is None
    store.commit_offset("g", "t", 0, 5)
    store.commit_offset("g", "t", 1, 0)
    store.commit_offset("h", "t", 0, 2)
    for _ in range(2):
        assert [store.committed_offset("g", "t", q) for q in (0, 1, 2)] == [5, 0, None]
        assert [store.committed_offset("h", "t", q) for q in (0, 1, 2)] == [2, None, None]
        assert store.committed_offset("nobody", "t", 0) is None
        store.close()
        store = opens()
    store.commit_offset("g", "t", 0, 1)
    assert store.committed_offset("g", "t", 0) == 1
    assert [g.name for g in store.groups()] == ["g", "h"]


@pytest.mark.parametrize("offset", [-1, 6, 1 << 62, 1 << 70, True, 1.0, "1", None])
def test_an_offset_beyond_the_queue_is_refused_and_changes_nothing(
    store: Store, offset: Any
) -> None:
    store.put_batch(batch("t", 5))
    with pytest.raises(CallerError):
        store.commit_offset("new", "t", 0, offset)
    assert store.groups() == []
    store.commit_offset("g", "t", 0, 3)
    with pytest.raises(CallerError):
        store.commit_offset("g", "t", 0, offset)
    assert store.committed_offset("g", "t", 0) == 3


def test_an_offset_ahead_of_the_log_is_clamped_when_it_is_first_used(
    store: Store, opens: Opens
) -> None:
    """As after a power cut that took the messages but not the offset."""
    from kvstore.index.keys import OFFSETS, U64, offset_key

    store.put_batch(batch("t", 5))
    store.commit_offset("g", "t", 0, 5)
    families = inside.families(store)
    rows = families.batch()
    rows.put(OFFSETS, offset_key(store.group("g").id, store.topic("t").id, 0), U64.pack(99))
    families.write(rows)
    store.close()
    reading = opens(read_only=True)
    assert reading.committed_offset("g", "t", 0) == 5
    reading.close()
    again = opens()
    assert again.committed_offset("g", "t", 0) == 5
    again.put_batch(batch("t", 5))
    assert again.committed_offset("g", "t", 0) == 5
    again.close()
    assert opens().committed_offset("g", "t", 0) == 5


# --- keys of deleted topics ---


def keyed(topic: str, count: int) -> list[Message]:
    return [Message(topic, b"x" * 50, keys=(f"k-{n}", topic)) for n in range(count)]


def key_pairs(store: Store) -> int:
    keys = inside.keys(store)
    segments = range(store.stats().end_position // store.config.segment_size + 1)
    return sum(len(keys.pairs(number)[0]) for number in segments)


def test_the_keys_of_a_deleted_topic_stay_and_find_nothing(opens: Opens) -> None:
    """Also when the topic is made again, and after a restart."""
    store = opens()
    inside.housekeeper(store).stop()
    for name in ("kept", "gone", "also"):
        store.create_topic(name, queues=1)
    for _ in range(8):
        store.put_batch(keyed("kept", 200) + keyed("gone", 300) + keyed("also", 100))
        store.checkpoint()
    store.seal()
    store.put_batch(keyed("kept", 50) + keyed("gone", 50))
    before = [m.position for m in store.query("kept", "k-7", limit=100)]
    store.checkpoint()
    pairs = key_pairs(store)
    store.delete_topics(["gone", "also"])
    store.create_topic("gone", queues=1)
    for _ in range(2):
        assert key_pairs(store) == pairs
        assert store.query("gone", "k-7") == []
        assert [m.position for m in store.query("kept", "k-7", limit=100)] == before
        assert store.verify().problems == []
        store.close()
        store = opens()
        inside.housekeeper(store).stop()
    store.put_batch(keyed("gone", 8))
    (found,) = store.query("gone", "k-7")
    assert store.find(found.message_id) == found
