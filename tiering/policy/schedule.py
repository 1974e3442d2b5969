"""Schedule: the segments due to become archives, the archives due to go cold or be deleted, and
why.

The idea: pure functions of segments, archives and the time. A policy looks at segments and topics,
not at a store: a few protocols are all that it asks, and `kvstore.Store` answers them.

All messages of a segment leave hot together, the oldest segment first. A segment may leave when its
newest message is older than the longest hot time among its topics. So age alone never takes from
readers what a topic's `hot_for` promises. Freeing disks in time is the task of `max_bytes` and the
watermarks, which move the oldest segments whatever their topics ask for. From then on classes are
apart: each goes cold, and is deleted, by the store time of its own last message, however late or
early it left hot.

Invariants: nothing is deleted before its class's whole time is over; a move that is due for its age
stays due as time passes, unless messages that wait hold it (`stuck`); segments go in the order of
their numbers, none before an older one that stays, except for an erasure (`schedule_erasure`).
Nothing here reads a record or changes the store. (A key provider that is asked whether a topic is
encrypted may make its key.)
"""

# ruff: noqa: D102  # the store's own types say what each attribute is

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

from kvstore.config import Retention
from kvstore.errors import KeyDestroyed
from tiering.keys.crypto import KeyProvider
from tiering.policy.policy import Policy, Tier, format_duration, is_open
from tiering.policy.retention_classes import RetentionClass, TopicTraits, life_of

Why = Literal["age", "size", "disk", "erased"]
"""The reason why a move is due: its time is over, `max_bytes`, a watermark, or it holds messages
that are to be erased.
"""

Fate = Literal["stays", "goes cold", "goes"]
"""The fate of an archive now."""

_EVER: Final = "without limit"


class Share(msgspec.Struct, frozen=True):
    """One topic's share of a segment: bytes of records, and the newest store time among them."""

    topic: str
    bytes: int
    newest: int


class Part(msgspec.Struct, frozen=True):
    """One class's share of a segment; becomes one archive."""

    kind: RetentionClass
    bytes: int
    newest: int
    topics: tuple[str, ...]


class Segment(msgspec.Struct, frozen=True):
    """A sealed segment. `bytes` is the size of its file; store times are ms, None if they are
    unknown; `leaves_hot` is the age at which all its topics may go (None: never), `held_by` the
    topic that asks for it. `parts` are in the order of their classes' names.
    """

    number: int
    bytes: int
    oldest: int | None
    newest: int | None
    leaves_hot: int | None
    held_by: str
    parts: tuple[Part, ...]


class Archived(msgspec.Struct, frozen=True):
    """An archive as the catalog has it; `kind` from `retention_classes.class_of_archive`.
    `last_stored_at` is ms, `raw_bytes` the size of its records in the log.
    """

    key: str
    tier: Tier
    bytes: int
    raw_bytes: int
    last_stored_at: int
    kind: RetentionClass


class PartDue(msgspec.Struct, frozen=True):
    """A class of a segment that leaves hot: `to` its archive's tier, None if it is over already."""

    retention_class: str
    to: Tier | None
    bytes: int
    topics: tuple[str, ...]


class SegmentDue(msgspec.Struct, frozen=True):
    """A segment that leaves hot. If all its parts are over, or there are none, it is deleted
    without an archive.
    """

    number: int
    bytes: int
    parts: tuple[PartDue, ...]
    why: Why
    reason: str


class ArchiveDue(msgspec.Struct, frozen=True):
    """An archive that goes cold, or is deleted (`to` None)."""

    key: str
    bytes: int
    to: Literal["cold"] | None
    reason: str


class OldestHot(msgspec.Struct, frozen=True):
    """The oldest segment that stays hot: until when (ms since the epoch, None: no limit), and the
    topic that holds it (none: the messages that wait in it).
    """

    number: int
    until: int | None
    topic: str


class Agenda(msgspec.Struct, frozen=True):
    """The due moves. `waits_for_hours`: something is due, but not at this hour; `segments` and
    `archives` are then the moves that would be made, and none may begin now.
    """

    segments: tuple[SegmentDue, ...]
    archives: tuple[ArchiveDue, ...]
    held: OldestHot | None
    waits_for_hours: bool

    @property
    def is_empty(self) -> bool:
        """Whether nothing is due, whatever the hour."""
        return not self.segments and not self.archives


def segment_of(
    policy: Policy,
    number: int,
    size: int,
    times: tuple[int | None, int | None],
    shares: Iterable[Share],
    known: Mapping[str, TopicTraits],
) -> Segment:
    """A segment from its topics' shares; `times` are its oldest and newest store time.

    Topics that are not in `known` were deleted. Their shares do not hold the segment, and are
    archived nowhere.
    """
    kinds: dict[RetentionClass, list[Share]] = {}
    slowest: tuple[int | None, str] | None = None
    for share in shares:
        traits = known.get(share.topic)
        if traits is None:
            continue
        life = life_of(policy, traits)
        if slowest is None or _is_longer(life.leaves_hot, slowest[0]):
            slowest = (life.leaves_hot, share.topic)
        if life.kind is not None:
            kinds.setdefault(life.kind, []).append(share)
    if slowest is None:
        # Nobody reads it any more, but its records can still be dumped, as any topic's.
        slowest = (life_of(policy, TopicTraits(name="")).leaves_hot, "")
    parts = [
        Part(
            kind,
            sum(s.bytes for s in held),
            max(s.newest for s in held),
            tuple(sorted(s.topic for s in held)),
        )
        for kind, held in sorted(kinds.items(), key=lambda item: item[0].name)
    ]
    return Segment(number, size, *times, *slowest, tuple(parts))


def schedule(
    policy: Policy,
    segments: Sequence[Segment],
    archives: Iterable[Archived],
    *,
    now_ms: int,
    hour: int,
    disk_used: float,
    other_bytes: int = 0,
    stuck: Callable[[], Collection[int]] = tuple,
) -> Agenda:
    """The agenda of moves due now. Pure.

    `segments` are the sealed ones, oldest first; `other_bytes` is the size of the other raw
    segments (the active one); `now_ms` should come from `trusted_clock`, which no leap of the clock
    moves; `hour` is local, `disk_used` a share, 0 to 1. At the second watermark the oldest
    segment goes, and no other for that reason: the caller asks again after it, with the disk as it
    is then. `stuck` gives the segments in which so much waits that they stay, with those behind
    them; it is asked only where a segment is due.
    """
    leaving: list[SegmentDue] = []
    held: OldestHot | None = None
    if policy.moves:
        leaving, held = _leaving(policy, segments, now_ms, disk_used, other_bytes)
        kept = stuck() if leaving else ()
        first = next((n for n, due in enumerate(leaving) if due.number in kept), None)
        if first is not None:
            held = OldestHot(leaving[first].number, None, "")
            leaving = leaving[:first]
    moving = [found for a in archives if (found := _archive_due(policy, a, now_ms)) is not None]
    return Agenda(
        tuple(leaving),
        tuple(moving),
        held,
        waits_for_hours=bool(leaving or moving) and not is_open(policy, hour, disk_used),
    )


def _leaving(
    policy: Policy, segments: Sequence[Segment], now: int, disk_used: float, other_bytes: int
) -> tuple[list[SegmentDue], OldestHot | None]:
    total = other_bytes + sum(s.bytes for s in segments)
    newest = _newest_of(segments)
    is_forced = policy.watermarks is not None and disk_used >= policy.watermarks[1]
    out: list[SegmentDue] = []
    for i, segment in enumerate(segments):
        why: Why
        if _has_passed(segment.leaves_hot, newest[i], now):
            why, reason = "age", f"its messages are older than {_text(segment.leaves_hot)}"
        elif policy.max_bytes is not None and total > policy.max_bytes:
            why, reason = "size", f"segments take {total} bytes, the limit is {policy.max_bytes}"
        elif is_forced and not out:
            why, reason = "disk", f"the disk is {disk_used:.0%} full, the oldest segment goes"
        else:
            return out, _held(segment, newest[i])
        out.append(_segment_due(segment, why, reason, now))
        total -= segment.bytes
    return out, None


def schedule_erasure(policy: Policy, segment: Segment, now_ms: int) -> SegmentDue | None:
    """The move of a segment that leaves whatever its age, because it holds messages that are to be
    erased; None: the policy has no place for it. Pure.
    """
    if not policy.moves:
        return None
    return _segment_due(segment, "erased", "it holds what is to be erased", now_ms)


def _newest_of(segments: Sequence[Segment]) -> list[int | None]:
    """Each segment's newest store time; an unknown one is no later than those behind it."""
    out: list[int | None] = []
    behind: int | None = None
    for segment in reversed(segments):
        out.append(segment.newest if segment.newest is not None else behind)
        if segment.oldest is not None:
            behind = segment.oldest
    return out[::-1]


def _segment_due(segment: Segment, why: Why, reason: str, now: int) -> SegmentDue:
    parts = []
    for part in segment.parts:
        age = now - part.newest
        to = None if part.kind.is_over(age) else part.kind.tier_at(age)
        parts.append(PartDue(part.kind.name, to, part.bytes, part.topics))
    return SegmentDue(segment.number, segment.bytes, tuple(parts), why, reason)


def fate(policy: Policy, tier: Tier, kind: RetentionClass, age: int) -> Fate:
    """The fate of an archive in a tier, by its class and the age of its last message. Pure."""
    if kind.is_over(age):
        return "goes"
    if tier == "warm" and policy.cold is not None and kind.tier_at(age) == "cold":
        return "goes cold"
    return "stays"


def _archive_due(policy: Policy, archive: Archived, now: int) -> ArchiveDue | None:
    kind = archive.kind
    found = fate(policy, archive.tier, kind, now - archive.last_stored_at)
    if found == "goes":
        reason = f"its messages are older than {_text(kind.ends)}"
        return ArchiveDue(archive.key, archive.bytes, None, reason)
    if found == "goes cold":
        reason = (
            "there is no place warm any more"
            if kind.first == "cold"
            else f"its messages are older than {_text(kind.leaves_warm)}"
        )
        return ArchiveDue(archive.key, archive.bytes, "cold", reason)
    return None


def _held(segment: Segment, newest: int | None) -> OldestHot:
    until = None
    if segment.leaves_hot is not None and newest is not None:
        until = newest + segment.leaves_hot
    return OldestHot(segment.number, until, segment.held_by)


def _has_passed(age: int | None, newest: int | None, now: int) -> bool:
    return age is not None and newest is not None and now - newest > age


def _is_longer(age: int | None, than: int | None) -> bool:
    return than is not None and (age is None or age > than)


def _text(age: int | None) -> str:
    return _EVER if age is None else format_duration(age)


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
