"""Topics, groups and committed offsets."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import (
    CallerError,
    GroupExists,
    GroupNotFound,
    Message,
    MessageIllegal,
    MessageNotFound,
    OffsetNotFound,
    QueueNotFound,
    Retention,
    Store,
    StoreConfig,
    TopicConfig,
    TopicExists,
    TopicNotFound,
    rebuild,
)
from kvstore.index.keys import PLACES, RUNS
from tests.store.conftest import Opens
from tests.store.stores import SEGMENT, SMALL, batch, bodies


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
    families = store._index.families
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


@pytest.mark.parametrize(
    "field",
    [
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
    store.close()
    assert opens().groups() == []


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
    families = store._index.families
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
