"""Crypto: the payload of a part <-> the payload encrypted with its topic's key.

The idea: AES-256-GCM of the `cryptography` package, which is imported only when something is
encrypted. The nonce follows from the key and everything that is encrypted or authenticated. So the
same input gives the same archive, and two different parts have two nonces (96 bits of a hash).

Invariants: a key is never in an archive, an error or a log, only its id is; bytes that do not
decrypt raise ArchiveDamaged.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple, Protocol

from kvstore.errors import ArchiveDamaged
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
