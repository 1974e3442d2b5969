"""Retention classes: which messages of a segment go into one archive, so that it expires whole.

The idea: the fate of a message that left hot follows from two ages, counted from its store time:
when it goes from warm to cold, and when it ends. Topics with the same two ages share archives; the
ages are the class's name ("warm8d-cold38d"), so an archive says by itself when it ends, also to a
restore that has nothing else. Ages of a day and more are rounded up to whole hours, from thirty
days on to whole days, so that near neighbours share.

Two kinds of topics have classes of their own. *Compacted* topics are rewritten by key. *Encrypted*
topics share a group of blocks with no other topic, and go at once when their key is destroyed.

Invariants: rounding only ever keeps a message longer; `read_class(kind.name)` gives back the class
`kind`; but for that rounding, a class has only topics that want its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kvstore.clock import whole_ms
from kvstore.config import Retention
from kvstore.core.names import DLQ_PREFIX, SYSTEM_TOPICS
from tiering.errors import PolicyIllegal
from tiering.policy.policy import Policy, Tier, format_duration, parse_duration

_HOUR: Final = 3_600_000
_DAY: Final = 24 * _HOUR
_EVER: Final = "ever"
_COMPACTED: Final = "compacted"
_ENCRYPTED: Final = "encrypted"
_NAME: Final = re.compile(
    r"(?:warm(?P<warm>[0-9a-z]+))?(?:(?(warm)-)cold(?P<cold>[0-9a-z]+))?"
    rf"(?P<compacted>-{_COMPACTED})?(?P<encrypted>-{_ENCRYPTED})?"
)


class TopicTraits(msgspec.Struct, frozen=True, kw_only=True):
    """The traits of a topic that decide its class. `kind` is `TopicInfo.kind`."""

    name: str
    kind: str = "normal"
    retention: Retention = Retention()
    encrypted: bool = False


class RetentionClass(msgspec.Struct, frozen=True):
    """The fate of messages once they left hot. Ages are ms since the store time; None: never.

    `first` is the tier an archive begins in, unless it is old enough for cold by then;
    `leaves_warm` and `ends` are the ages at which it goes cold and is deleted.
    """

    first: Tier
    leaves_warm: int | None
    ends: int | None
    compacted: bool = False
    encrypted: bool = False

    @property
    def name(self) -> str:
        """The stable text name; an archive's manifest has it as `retention_class`."""
        parts = []
        goes_cold = self.first == "cold" or self.leaves_warm is not None
        if self.first == "warm":
            parts.append("warm" + _age(self.leaves_warm if goes_cold else self.ends))
        if goes_cold:
            parts.append("cold" + _age(self.ends))
        parts += [_COMPACTED] * self.compacted + [_ENCRYPTED] * self.encrypted
        return "-".join(parts)

    def tier_at(self, age: int) -> Tier:
        """The tier of an archive whose last message has this age."""
        if self.leaves_warm is not None and age > self.leaves_warm:
            return "cold"
        return self.first

    def is_over(self, age: int) -> bool:
        """Whether an archive whose last message has this age may be deleted."""
        return self.ends is not None and age > self.ends


class Life(msgspec.Struct, frozen=True):
    """A topic's way through the tiers. `leaves_hot` is the age in ms at which it may leave the raw
    segment (None: never for its age); `kind` is its class from then on (None: there is no place).
    """

    leaves_hot: int | None
    kind: RetentionClass | None


def life_of(policy: Policy, topic: TopicTraits) -> Life:
    """The life of a topic under a policy. Pure.

    A field that the topic's own retention leaves None is the policy's. System topics (timers,
    transactions) leave hot as the policy says and never end: a record there may be due in years.
    Dead letters without a retention of their own live for `dead_letters_for` at least. A compacted
    topic ends only if its own retention says how long its last tier lasts: the newest message of a
    key is no older message's copy.
    """
    own = Retention() if topic.name in SYSTEM_TOPICS else topic.retention
    hot, warm, cold = (
        _ms(theirs if theirs is not None else ours)
        for theirs, ours in (
            (own.hot_for, policy.hot_for),
            (own.warm_for, policy.warm_for),
            (own.cold_for, policy.cold_for),
        )
    )
    if not policy.moves:
        return Life(hot, None)
    first: Tier = "warm" if policy.warm is not None else "cold"
    if first == "cold":
        leaves_warm, ends = None, _sum(hot, warm or 0, cold)
    elif policy.cold is None:
        leaves_warm, ends = None, _sum(hot, warm, cold or 0)
    else:
        leaves_warm = _sum(hot, warm)
        ends = _sum(leaves_warm, cold)
    kind = RetentionClass(
        first,
        _rounded(leaves_warm),
        _rounded(_end(policy, topic, own, ends)),
        compacted=topic.kind == "compacted",
        encrypted=topic.encrypted,
    )
    return Life(hot, kind)


def read_class(name: str) -> RetentionClass:
    """A class from its name; `PolicyIllegal` if the name is no class's."""
    found = _NAME.fullmatch(name)
    if found is None or not (found["warm"] or found["cold"]):
        raise PolicyIllegal(
            f"{name!r} is no retention class; one looks like warm8d-cold38d or coldever"
        )
    marks = {"compacted": bool(found["compacted"]), "encrypted": bool(found["encrypted"])}
    warm, cold = (_read_age(name, found[tier]) for tier in ("warm", "cold"))
    if found["warm"] is None:
        return RetentionClass("cold", None, cold, **marks)
    if found["cold"] is None:
        return RetentionClass("warm", None, warm, **marks)
    return RetentionClass("warm", warm, cold, **marks)


def class_of_archive(
    policy: Policy, name: str, topics: Iterable[str], known: Mapping[str, TopicTraits]
) -> RetentionClass:
    """The class by which an archive is judged today: of the classes that its remaining topics have
    under the present policy, the one that keeps it longest. If no topic remains, or the policy has
    no place any more, it is the class that the archive was made as.

    Raises `PolicyIllegal` if `name` is no class's.
    """
    made_as = read_class(name)
    lives = [life_of(policy, known[topic]).kind for topic in topics if topic in known]
    kinds = [kind for kind in lives if kind is not None]
    if not kinds:
        return made_as
    return RetentionClass(
        kinds[0].first,
        _longest(kind.leaves_warm for kind in kinds),
        _longest(kind.ends for kind in kinds),
        compacted=made_as.compacted,
        encrypted=made_as.encrypted,
    )


def _end(policy: Policy, topic: TopicTraits, own: Retention, ends: int | None) -> int | None:
    if topic.name in SYSTEM_TOPICS:
        return None
    if topic.kind == "compacted":
        last = own.cold_for if policy.cold is not None else own.warm_for
        return ends if last is not None else None
    if topic.name.startswith(DLQ_PREFIX) and own == Retention():
        return _longest((ends, _ms(policy.dead_letters_for)))
    return ends


def _longest(ages: Iterable[int | None]) -> int | None:
    longest = 0
    for age in ages:
        if age is None:
            return None
        longest = max(longest, age)
    return longest


def _sum(*ages: int | None) -> int | None:
    total = 0
    for age in ages:
        if age is None:
            return None
        total += age
    return total


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else whole_ms(seconds)


def _rounded(age: int | None) -> int | None:
    if age is None or age <= _DAY:
        return age
    grain = _DAY if age > 30 * _DAY else _HOUR
    return -(-age // grain) * grain


def _age(age: int | None) -> str:
    return _EVER if age is None else format_duration(age)


def _read_age(name: str, text: str | None) -> int | None:
    if text is None or text == _EVER:
        return None
    age = parse_duration(text)
    if age is None:
        raise PolicyIllegal(f"{name!r} is no retention class: {text!r} is no duration")
    return age
