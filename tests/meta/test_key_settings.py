"""A message is found by the keys that its topic's setting took at its put, whatever came then."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import kvstore
from kvstore import Message, Retention, Store, StoreConfig
from kvstore.index.keys import TOPICS
from kvstore.meta.topic import (
    KEY_HISTORY_MAX,
    KEY_LEVELS,
    KeyHistory,
    exact_from,
    history_changed,
    history_within,
    level_at,
)
from tests.support import inside
from tests.support.files import WatchedFiles, every, none
from tests.support.stores import SEGMENT, Opens, killed

CONFIG: Final = StoreConfig(segment_size=SEGMENT, checkpoint_interval=1000.0)
SETTINGS: Final = ("all", "unique", "off")


def put(store: Store, name: str) -> None:
    """A message with its name as key, body and unique id."""
    store.put_batch(
        [Message("t", name.encode(), queue=0, keys=[f"key-{name}"], message_id=f"id-{name}")]
    )


def found(store: Store, name: str) -> str:
    """The least setting that finds as much."""
    by_key = [m.body for m in store.query("t", f"key-{name}")]
    by_id = [m.body for m in store.query("t", f"id-{name}")]
    assert by_key in ([], [name.encode()])
    assert by_id in ([], [name.encode()])
    assert bool(by_id) or not by_key
    return "all" if by_key else "unique" if by_id else "off"


@pytest.mark.parametrize("before", SETTINGS)
@pytest.mark.parametrize("after", SETTINGS)
def test_a_message_put_under_a_setting_is_found_under_it_after_crash_and_rebuild(
    tmp_path: Path, before: Any, after: Any
) -> None:
    with kvstore.open(tmp_path / "a", CONFIG) as store:
        store.create_topic("t", key_index=before)
        put(store, "old")
        store.alter_topic("t", key_index=after)
        put(store, "new")
        assert (found(store, "old"), found(store, "new")) == (before, after)
        killed(store, tmp_path / "b")
    at_least = min(before, after, key=SETTINGS.index)
    for path in (tmp_path / "a", tmp_path / "b"):
        with kvstore.open(path, CONFIG, read_only=True) as reader:
            assert found(reader, "old") in (before, at_least)
        with kvstore.open(path, CONFIG) as store:
            assert (found(store, "old") in (before, at_least), found(store, "new")) == (True, after)
            assert store.verify().problems == []
        kvstore.rebuild(path, CONFIG)
        with kvstore.open(path, CONFIG) as store:
            assert (found(store, "old"), found(store, "new")) == (at_least, after)
            assert store.verify().problems == []


def test_a_setting_changed_many_times_is_kept_with_where_each_began(opens: Opens) -> None:
    store = opens(CONFIG)
    store.create_topic("t")
    names = {f"n{i}": SETTINGS[i % 3] for i in range(20)}
    for name, setting in names.items():
        store.alter_topic("t", key_index=setting)  # type: ignore[arg-type]  # one of three texts
        put(store, name)
    store.alter_topic("t", key_index="off")
    history = store.topic("t").key_history
    assert [position for position, _ in history] == sorted({p for p, _ in history})
    assert len(history) == 21
    store.close()
    kvstore.rebuild(store.path, CONFIG)
    store = opens(CONFIG)
    assert {name: found(store, name) for name in names} == names
    assert store.verify().problems == []


def test_a_topic_that_never_changed_keeps_no_history(store: Store) -> None:
    store.alter_topic("t", queues=8, key_index="all")
    assert store.topic("t").key_history == ()


def test_what_retention_has_passed_leaves_the_history(opens: Opens) -> None:
    config = msgspec.structs.replace(
        CONFIG, retention=Retention(max_bytes=2 * SEGMENT), delete_interval=0.0
    )
    store = opens(config)
    store.create_topic("t", queues=1)
    for setting in ("off", "all", "off"):
        store.alter_topic("t", key_index=setting)
        store.put_batch([Message("t", bytes(500)) for _ in range(300)])
    assert store.apply_retention() > 3
    store.alter_topic("t", key_index="unique")
    (_, first), *_ = history = store.topic("t").key_history
    assert (first, history[-1][1]) == ("off", "unique")
    assert len(history) == 2


def test_a_row_of_before_is_read_and_goes_on(opens: Opens) -> None:
    store = opens(CONFIG)
    store.create_topic("t")
    put(store, "old")
    families = inside.families(store)
    ((key, row),) = families.rows(TOPICS, b"")
    fields = msgspec.msgpack.decode(row)
    del fields["key_history"]
    batch = families.batch()
    batch.put(TOPICS, key, msgspec.msgpack.encode(fields))
    families.write(batch)
    store.close()
    store = opens(CONFIG)
    store.alter_topic("t", key_index="off")
    put(store, "new")
    store.close()
    kvstore.rebuild(store.path, CONFIG)
    store = opens(CONFIG)
    assert (found(store, "old"), found(store, "new")) == ("all", "off")
    assert store.verify().problems == []


@pytest.mark.parametrize("keep", [none, every])
def test_a_change_above_a_log_that_a_power_cut_took_holds_from_its_end_on(
    tmp_path: Path, keep: Any
) -> None:
    files = WatchedFiles()
    config = msgspec.structs.replace(CONFIG, files=files, flush_interval=1e6)
    with kvstore.open(tmp_path / "a", config) as store:
        store.create_topic("t")
        put(store, "old")
        store.flush()
        put(store, "lost")
        store.alter_topic("t", key_index="off")
        files.power_cut(store.path, tmp_path / "b", keep)
    with kvstore.open(tmp_path / "b", CONFIG) as store:
        put(store, "new")
        end = store.stats().end_position
        assert all(position < end for position, _ in store.topic("t").key_history)
        assert (found(store, "old"), found(store, "new")) == ("all", "off")
    kvstore.rebuild(tmp_path / "b", CONFIG)
    with kvstore.open(tmp_path / "b", CONFIG) as store:
        assert (found(store, "old"), found(store, "new")) == ("all", "off")
        assert store.verify().problems == []


def test_a_full_history_says_more_than_was_taken_and_never_less() -> None:
    history: KeyHistory = ((0, "off"),)
    said = []
    for n in range(1, 200):
        setting = SETTINGS[n % 3]
        said.append((n * 10, setting))
        history = history_changed(history, setting, n * 10, 0)  # type: ignore[arg-type]  # one of three
    assert len(history) == KEY_HISTORY_MAX
    assert all(a < b for (a, _), (b, _) in pairwise(history))
    for position, setting in said:
        level = KEY_LEVELS[setting]  # type: ignore[index]  # one of three
        assert level_at(history, position + 5) >= level
        if position >= exact_from(history):
            assert level_at(history, position + 5) == level


def test_a_history_within_a_shorter_log_keeps_the_last_setting() -> None:
    history: KeyHistory = ((0, "all"), (50, "off"), (70, "unique"))
    assert history_within(history, 60) == ((0, "all"), (50, "off"), (60, "unique"))
    assert history_within(history, 40) == ((0, "all"), (40, "unique"))
    assert history_within(history, 100) == history
