"""Key sources: the provider that a setting names, and the keys that a job takes into another
process.

The idea: a provider is the caller's object. It may hold locks or connections and needn't survive a
pickle. The worker asks it beforehand for every key that a job may need; the job has the answers.

Invariants: a job has the keys of its own topics and no others; a destroyed key is told apart from a
key that the provider does not know: only the messages of a destroyed key are gone for good.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvstore.errors import KeyDestroyed, KeyMissing
from kvstore.files import Files
from tiering.keys.crypto import KeyProvider, TopicKey
from tiering.keys.key_file import KeyFile


def provider_of(given: str | Path | KeyProvider | None, files: Files) -> KeyProvider | None:
    """The provider of a setting: the provider itself, or that of the key file at a path."""
    return KeyFile(given, files) if isinstance(given, str | Path) else given


class KeysAtHand(msgspec.Struct, frozen=True, kw_only=True):
    """A `KeyProvider` of answers that were asked for beforehand. `destroyed` names the topics that
    had a key and have none now. `gone` are the keys (topic, id) that the provider reports as
    destroyed.
    """

    writing: dict[str, TopicKey] = {}
    reading: dict[tuple[str, str], TopicKey] = {}
    destroyed: frozenset[str] = frozenset()
    gone: frozenset[tuple[str, str]] = frozenset()

    def __repr__(self) -> str:
        return f"KeysAtHand({sorted({*self.writing, *self.destroyed})})"

    def key_for_writing(self, topic: str) -> TopicKey | None:
        """See `KeyProvider`."""
        if topic in self.destroyed:
            raise KeyDestroyed(
                f"the key of topic {topic!r} was destroyed, so its messages stay where they are "
                "until it has another (KeyFile.make), or keys that say that it needs none", topic
            )  # fmt: skip
        return self.writing.get(topic)

    def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
        """See `KeyProvider`."""
        found = self.reading.get((topic, key_id))
        if found is None:
            kind = KeyDestroyed if (topic, key_id) in self.gone else KeyMissing
            raise kind(f"key {key_id} of topic {topic!r} is not there", topic)
        return found

    def is_gone(self, topic: str, key_id: str) -> bool:
        """Whether the key is known to be destroyed: nobody will read its messages again."""
        return (topic, key_id) in self.gone


def keys_at_hand(
    keys: KeyProvider | None, topics: Iterable[str], used: Iterable[tuple[str, str]] = ()
) -> KeysAtHand | None:
    """The keys that `keys` has for writing `topics`, and for reading messages that were encrypted
    with the keys `used` (topic, key id). None without a provider.
    """
    if keys is None:
        return None
    writing: dict[str, TopicKey] = {}
    reading: dict[tuple[str, str], TopicKey] = {}
    destroyed, gone = set(), set()
    wanted = set(used)
    for topic in sorted({*topics, *(topic for topic, _ in wanted)}):
        try:
            key = keys.key_for_writing(topic)
        except KeyDestroyed:
            destroyed.add(topic)
            continue
        if key is not None:
            writing[topic] = key
            # Reading back the new archive asks for it.
            reading[topic, key.key_id] = key
    for topic, key_id in sorted(wanted):
        try:
            reading[topic, key_id] = keys.key_for_reading(topic, key_id)
        except KeyDestroyed:
            gone.add((topic, key_id))
        except KeyMissing:
            continue
    return KeysAtHand(
        writing=writing, reading=reading, destroyed=frozenset(destroyed), gone=frozenset(gone)
    )
