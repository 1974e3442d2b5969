"""Snapshot: the facts about a store that a policy needs.

The idea: a policy looks at segments and topics, not at a store. These protocols are the few
questions that it asks; `kvstore.Store` answers them, and so does any stand-in of a test.

Invariant: nothing here reads a record or changes the store. (A key provider that is asked whether a
topic is encrypted may make its key.)
"""

# ruff: noqa: D102  # the store's own types say what each attribute is

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kvstore.config import Retention
from kvstore.errors import KeyDestroyed
from tiering.keys.crypto import KeyProvider
from tiering.policy.policy import Policy
from tiering.policy.retention_classes import TopicTraits
from tiering.policy.schedule import Segment, Share, segment_of


class Topic(Protocol):
    """See `kvstore.TopicInfo`."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def retention(self) -> Retention: ...


class ShareStats(Protocol):
    """See `kvstore.TopicShare`: `bytes` of a topic's records, their `newest` store time in ms."""

    @property
    def topic(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def newest(self) -> int: ...


class Stats(Protocol):
    """See `kvstore.SegmentStats`: `bytes` of the segment's file; store times in ms, None if it
    holds nothing.
    """

    @property
    def number(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def oldest(self) -> int | None: ...
    @property
    def newest(self) -> int | None: ...
    @property
    def topics(self) -> Sequence[ShareStats]: ...


def traits_of(
    topics: Sequence[Topic], encrypted: Collection[str] = frozenset()
) -> dict[str, TopicTraits]:
    """The traits that decide each topic's class, by name; `encrypted` names the topics with a key
    of their own.
    """
    return {
        t.name: TopicTraits(
            name=t.name, kind=t.kind, retention=t.retention, encrypted=t.name in encrypted
        )
        for t in topics
    }


def encrypted_of(topics: Sequence[Topic], keys: KeyProvider | None) -> frozenset[str]:
    """The topics whose messages are to be encrypted, including those whose key was destroyed: these
    can't be archived before they have another key.
    """
    return frozenset(t.name for t in topics if keys is not None and _is_encrypted(t.name, keys))


def _is_encrypted(topic: str, keys: KeyProvider) -> bool:
    try:
        return keys.key_for_writing(topic) is not None
    except KeyDestroyed:
        return True


def segments_of(
    policy: Policy, found: Iterable[Stats], known: Mapping[str, TopicTraits]
) -> list[Segment]:
    """The segments of a store (`Store.segments`) as a policy sees them."""
    return [
        segment_of(
            policy,
            s.number,
            s.bytes,
            (s.oldest, s.newest),
            [Share(share.topic, share.bytes, share.newest) for share in s.topics],
            known,
        )
        for s in found
    ]
