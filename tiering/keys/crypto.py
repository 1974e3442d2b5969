"""Crypto: the payload of a part <-> the payload encrypted with its topic's key; providers of keys.

The idea: AES-256-GCM of the `cryptography` package, which is imported only when something is
encrypted. The nonce follows from the key and everything that is encrypted or authenticated. So the
same input gives the same archive, and two different parts have two nonces (96 bits of a hash).

A `KeyProvider` is the caller's object. It may hold locks or connections and needn't survive a
pickle. The worker asks it beforehand for every key that a job may need; the job has the answers
(`KeysAtHand`).

Invariants:

- A key is never in an archive, an error or a log, only its id is.
- Bytes that do not decrypt raise ArchiveDamaged.
- A job has the keys of its own topics and no others.
- A destroyed key is told apart from a key that the provider does not know: only the messages of a
  destroyed key are gone for good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

import msgspec

from kvstore.errors import ArchiveDamaged, KeyDestroyed, KeyMissing
from tiering.errors import EncryptionMissing

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:  # an extra: see `_cipher`
    _available = False
else:
    _available = True

NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
KEY_SIZE: Final = 32
"""AES-256."""


class TopicKey(NamedTuple):
    """A topic's key: `key_id` may stand anywhere, `secret` is 32 bytes."""

    key_id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"TopicKey(key_id={self.key_id!r})"


class KeyProvider(Protocol):
    """The source of topics' keys."""

    def key_for_writing(self, topic: str) -> TopicKey | None:
        """The key for encrypting the topic's messages; made now if the topic is to have one and has
        none yet. None for a topic that is not encrypted. Raises KeyDestroyed.
        """

    def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
        """The key of that id. Raises KeyDestroyed if it was destroyed (merges then drop the
        messages that it encrypted), KeyMissing if it is not known.
        """
        ...


def encrypt(payload: bytes, secret: bytes, associated: bytes) -> bytes:
    """Nonce, `payload` encrypted, tag. Raises EncryptionMissing."""
    # The nonce depends on all that differs between two parts: with one nonce for two texts, or for
    # one text with two kinds of associated data, GCM gives its key away.
    digest = hashlib.blake2b(key=secret, digest_size=NONCE_SIZE)
    digest.update(len(associated).to_bytes(4, "big") + associated)
    digest.update(payload)
    nonce = digest.digest()
    return nonce + _cipher(secret).encrypt(nonce, payload, associated)


def decrypt(data: bytes, secret: bytes, associated: bytes) -> bytes:
    """The decrypted payload. Raises ArchiveDamaged, EncryptionMissing."""
    if len(data) < NONCE_SIZE + TAG_SIZE:
        raise ArchiveDamaged(f"{len(data)} bytes are too few for an encrypted part")
    cipher = _cipher(secret)
    try:
        return cipher.decrypt(data[:NONCE_SIZE], data[NONCE_SIZE:], associated)
    except InvalidTag:
        raise ArchiveDamaged("a part does not decrypt with the key of its topic") from None


def _cipher(secret: bytes) -> AESGCM:
    if not _available:
        raise EncryptionMissing(
            "archives of this topic are encrypted, which takes the package cryptography: "
            "install kvmq[encryption]"
        )
    if len(secret) != KEY_SIZE:
        raise ArchiveDamaged(f"a key has {len(secret)} bytes, it should have {KEY_SIZE}")
    return AESGCM(secret)


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
