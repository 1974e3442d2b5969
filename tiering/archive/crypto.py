"""Crypto: the payload of a part <-> the same encrypted with its topic's key; where keys are kept.

The idea: AES-256-GCM of the `cryptography` package. The nonce follows from key and payload, so that
the same input gives the same archive, and no nonce ever serves two payloads. A topic has one key;
when the key is destroyed, everything of the topic that lies in archives anywhere is gone with it.

Invariants: a key is never in an archive, an error or a log, only its id is; a key file can be read
by its owner alone, and is replaced as a whole.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class TopicKey(NamedTuple):
    """A topic's key: `key_id` may stand anywhere, `secret` is 32 bytes."""

    key_id: str
    secret: bytes


class KeyProvider(Protocol):
    """Where the keys of topics come from."""

    def key_for_writing(self, topic: str) -> TopicKey | None:
        """The key that the topic's messages are to be encrypted with (made if it is to have one
        and has none yet); None for a topic that is not encrypted. Raises KeyDestroyed.
        """

    def key_for_reading(self, topic: str, key_id: str) -> TopicKey:
        """The key of that id. Raises KeyDestroyed if it is not there any more."""
