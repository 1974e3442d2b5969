"""An error behind a write of RocksDB: the call failed, but its rows are there, and the calls
behind it reckon with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvstore import GroupConfig, Store, StoreConfig, TopicConfig
from tests.support.segment_files import batch, bodies
from tests.support.stores import SEGMENT, Opens
from tests.support.struck import struck_behind

Call = Callable[[Store], object]


@pytest.mark.parametrize(
    "make",
    [
        lambda store: store.create_topic("first"),
        lambda store: store.create_topics([TopicConfig(name="first")]),
        lambda store: store.put("first", b"x", queue=0),
    ],
    ids=["create_topic", "create_topics", "put"],
)
def test_a_topic_behind_one_whose_making_was_struck_has_an_id_of_its_own(
    opens: Opens, make: Call
) -> None:
    store = opens(StoreConfig(segment_size=SEGMENT, auto_create_topics=True))
    assert store.handover.topic(0) is None, "the names of ids are in memory"
    assert struck_behind(store, 1, lambda: make(store)) == 1
    store.create_topic("second")
    store.put("first", b"1", queue=0)
    store.put("second", b"2", queue=0)
    assert (bodies(store, "first", 0), bodies(store, "second", 0)) == ([b"1"], [b"2"])
    infos = {name: store.topic(name) for name in ("first", "second")}
    assert infos["first"].id != infos["second"].id
    for name, info in infos.items():
        found = store.handover.topic(info.id)
        assert found is not None, "a worker would take its messages for those of a deleted topic"
        assert found.name == name


@pytest.mark.parametrize(
    "make",
    [
        lambda store: store.create_group("first"),
        lambda store: store.create_groups([GroupConfig(name="first")]),
        lambda store: store.commit_offset("first", "t", 0, 1),
    ],
    ids=["create_group", "create_groups", "commit_offset"],
)
def test_a_group_behind_one_whose_making_was_struck_has_an_id_of_its_own(
    opens: Opens, make: Call
) -> None:
    store = opens()
    store.create_topic("t", 1)
    store.put_batch(batch("t", 5))
    struck_behind(store, 1, lambda: make(store))
    store.create_group("second")
    store.commit_offset("first", "t", 0, 3)
    assert store.committed_offset("second", "t", 0) is None
    assert store.group("first").id != store.group("second").id


def test_an_offset_whose_commit_was_struck_can_be_set_back(opens: Opens) -> None:
    store = opens()
    store.create_topic("t", 1)
    store.put_batch(batch("t", 5))
    store.commit_offset("g", "t", 0, 2)
    struck_behind(store, 1, lambda: store.commit_offset("g", "t", 0, 4))
    assert store.committed_offset("g", "t", 0) == 4
    store.commit_offset("g", "t", 0, 2)
    assert store.committed_offset("g", "t", 0) == 2


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda store: store.alter_topic("t", queues=8), lambda store: store.topic("t")),
        (lambda store: store.alter_topic("t", key_index="off"), lambda store: store.topic("t")),
        (lambda store: store.alter_group("g", max_attempts=3), lambda store: store.group("g")),
        (lambda store: store.delete_topic("t"), lambda store: store.topics()),
        (lambda store: store.delete_group("g"), lambda store: store.groups()),
    ],
    ids=["queues", "key_index", "max_attempts", "delete_topic", "delete_group"],
)
def test_a_change_that_was_struck_is_shown_as_the_next_opening_shows_it(
    opens: Opens, change: Call, shown: Call
) -> None:
    store = opens()
    store.create_topic("t", 1)
    store.create_group("g")
    before = shown(store)
    struck_behind(store, 1, lambda: change(store))
    found = shown(store)
    store.close()
    assert found == shown(opens())
    assert found != before


def test_segments_whose_giving_up_was_struck_are_not_put_to(opens: Opens) -> None:
    """Nothing looks for messages there, and the next opening removes the segments."""
    store = opens()
    store.create_topic("t", 1)
    store.put_batch(batch("t", 3))
    store.seal()
    writes = struck_behind(store, 0, lambda: store.handover.reserve(1, 0))
    for number in range(1, writes + 1):
        struck_behind(store, number, lambda: store.handover.reserve(2, 0))
        store.put("t", b"%d" % number, queue=0)
    store.flush()
    wanted = bodies(store, "t", 0)
    assert len(wanted) == 3 + writes
    store.close()
    again = opens()
    assert bodies(again, "t", 0) == wanted
    assert again.verify().problems == []
