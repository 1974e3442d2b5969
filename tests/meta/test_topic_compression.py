"""Compression that is a topic's own."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore import Message, StoreConfig
from kvstore.core.names import COMPRESSED

BODY = b"the same again and again, " * 40


def is_compressed(store: kvstore.Store, position: int) -> bool:
    message = store.read_at(position)
    assert message.body == BODY
    return bool(message.system_flags & COMPRESSED)


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
def test_a_topics_own_setting_holds_for_single_puts_and_for_batches(
    tmp_path: Path, codec: str
) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_topic("packed", compress_above=100, compression=codec)  # type: ignore[arg-type]
        store.create_topic("plain")
        single = store.put("packed", BODY, queue=0)
        assert is_compressed(store, single.position)
        assert single.size < len(BODY)
        assert not is_compressed(store, store.put("plain", BODY, queue=0).position)
        mixed = store.put_batch([Message("packed", BODY), Message("plain", BODY)] * 3)
        assert [is_compressed(store, r.position) for r in mixed] == [True, False] * 3
        small = store.put("packed", BODY[:100], queue=0)
        assert not store.read_at(small.position).system_flags & COMPRESSED


def test_a_topic_may_differ_from_a_store_that_compresses(tmp_path: Path) -> None:
    config = StoreConfig(compress_above=10, compression="zstd")
    with kvstore.open(tmp_path / "s", config) as store:
        store.create_topic("large-only", compress_above=1 << 20)
        store.create_topic("as-everywhere")
        store.create_topic("other-codec", compression="lz4")
        plain, packed, other = (
            store.put(name, BODY, queue=0)
            for name in ("large-only", "as-everywhere", "other-codec")
        )
        assert not is_compressed(store, plain.position)
        assert is_compressed(store, packed.position)
        assert is_compressed(store, other.position)
        flags = [store.read_at(r.position).system_flags for r in (packed, other)]
        assert flags[0] != flags[1]


def test_a_changed_setting_holds_from_the_next_put_on(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", StoreConfig(auto_create_topics=True)) as store:
        assert not is_compressed(store, store.put("t", BODY, queue=0).position)
        store.alter_topic("t", compress_above=5)
        assert is_compressed(store, store.put("t", BODY, queue=0).position)
        assert is_compressed(store, store.put_batch([Message("t", BODY)] * 2)[1].position)
    with kvstore.open(tmp_path / "s") as store:
        assert is_compressed(store, store.put("t", BODY, queue=0).position)
