"""Merging encrypted archives: with the present key, and without messages that no key opens."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from kvstore.errors import KeyDestroyed, KeyMissing
from tests.tiering.archive.making import SMALL_BLOCKS, plain_queues
from tests.tiering.merge.merging import deal, made_of, merged, records_in, records_of
from tiering.keys.crypto import KeysAtHand, TopicKey, keys_at_hand
from tiering.merge.partition import Dropped

FIRST = TopicKey("first", b"1" * 32)
SECOND = TopicKey("second", b"2" * 32)


class Provider:
    """Keys of one topic: the one to write with (None: destroyed), those to read with, and the ids
    of those that were destroyed.
    """

    def __init__(
        self, topic: str, writing: TopicKey | None, *reading: TopicKey, gone: str = ""
    ) -> None:
        self.topic = topic
        self.writing = writing
        self.reading = {key.key_id: key for key in reading}
        self.gone = gone

    def key_for_writing(self, topic: str) -> TopicKey | None:
        if topic == self.topic and self.writing is None:
            raise KeyDestroyed("it was destroyed", topic)
        return self.writing if topic == self.topic else None

    def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
        if key_id == self.gone:
            raise KeyDestroyed("it was destroyed", topic)
        if key_id not in self.reading:
            raise KeyMissing("it is not there", topic)
        return self.reading[key_id]


def at_hand(provider: Provider) -> KeysAtHand:
    found = keys_at_hand(provider, ["topic0", "topic1"], {("topic0", "first")})
    assert found is not None
    return found


def test_keys_at_hand_survive_a_pickle_and_tell_no_secret() -> None:
    keys = at_hand(Provider("topic0", SECOND, FIRST))
    again = pickle.loads(pickle.dumps(keys))  # made a line before
    assert again == keys
    assert again.key_for_writing("topic0") == SECOND
    assert again.key_for_reading("topic0", "first") == FIRST
    assert again.key_for_writing("topic1") is None
    assert "1111" not in repr(keys)
    assert "2222" not in repr(keys)


def test_what_the_provider_knows_nothing_of_is_not_taken_for_gone() -> None:
    assert at_hand(Provider("topic0", None, gone="first")).is_gone("topic0", "first")
    assert at_hand(Provider("topic0", SECOND, gone="first")).is_gone("topic0", "first")
    assert not at_hand(Provider("topic0", None)).is_gone("topic0", "first")
    assert not at_hand(Provider("topic0", SECOND)).is_gone("topic0", "first")
    assert not at_hand(Provider("topic0", SECOND, FIRST)).is_gone("topic0", "first")
    assert not at_hand(Provider("another", SECOND)).is_gone("topic0", "first")
    assert keys_at_hand(None, ["topic0"]) is None
    with pytest.raises(KeyDestroyed):
        at_hand(Provider("topic0", None)).key_for_writing("topic0")


def test_a_merge_encrypts_with_the_key_of_today() -> None:
    queues = plain_queues(topics=2, messages=20)
    old = msgspec.structs.replace(SMALL_BLOCKS, keys=at_hand(Provider("topic0", FIRST, FIRST)))
    archives = made_of(deal(queues, lambda _, offset: offset // 10), old)
    keys = at_hand(Provider("topic0", SECOND, FIRST))
    new = msgspec.structs.replace(SMALL_BLOCKS, keys=keys)
    result = merged(archives, settings=new)
    assert records_in(result.open(keys)) == records_of(queues)
    assert [t.key_id for t in result.open(keys).manifest.topics] == ["second", None]


def test_what_was_encrypted_with_a_destroyed_key_is_left_out_of_a_merge() -> None:
    queues = plain_queues(topics=2, messages=20)
    old = msgspec.structs.replace(SMALL_BLOCKS, keys=at_hand(Provider("topic0", FIRST, FIRST)))
    archives = made_of(deal(queues, lambda _, offset: offset // 10), old)
    keys = at_hand(Provider("topic0", None, gone="first"))
    new = msgspec.structs.replace(SMALL_BLOCKS, keys=keys)
    result = merged(archives, settings=new)
    assert result.merged.dropped == Dropped(unreadable=40)
    assert records_in(result.open()) == records_of(q for q in queues if q.topic.name == "topic1")
