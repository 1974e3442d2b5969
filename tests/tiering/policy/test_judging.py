"""Archives are judged by the present policy and topics, and few are opened for that."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import Retention
from kvstore.errors import ArchiveDamaged
from tests.support import inside_tiering
from tests.tiering.policy.givens import DAY, DAY_MS, START_MS
from tiering.archive.manifest import ArchivedTopic, Manifest
from tiering.catalog.catalog import (
    TOPICS_MAX,
    ArchiveRow,
    decode_row,
    encode_row,
    pack_topics,
    read_topics,
    row_of,
)
from tiering.errors import PlaceUnavailable
from tiering.policy.effective_class import ClassResolver, Today
from tiering.policy.policy import Policy
from tiering.policy.retention_classes import TopicTraits, class_of_archive
from tiering.policy.schedule import fate

POLICY = Policy(hot_for=DAY, warm_for=7 * DAY, cold_for=20 * DAY, warm="w", cold="c")
MADE_AS = "warm8d-cold28d"
ROW = ArchiveRow(
    number=1, place="w", key="k", tier="warm", size=10, crc=0, first_position=0, last_position=1,
    first_stored_at=START_MS, last_stored_at=START_MS, messages=1, raw_bytes=40,
    retention_class=MADE_AS,
)  # fmt: skip


def today(policy: Policy = POLICY, **retentions: Retention) -> Today:
    """Topics t1, t2 and so on, whose ids are those."""
    return today_of(retentions, policy)


def today_of(retentions: Mapping[str, Retention], policy: Policy = POLICY) -> Today:
    names = {int(name[1:]): name for name in retentions}
    traits = {
        name: TopicTraits(name=name, retention=retention) for name, retention in retentions.items()
    }
    return Today(policy, names, traits)


class Manifests:
    """Archives by number, of which those that were read are noted."""

    def __init__(self, topics: Mapping[int, list[int]] | None = None) -> None:
        self.topics = topics or {}
        self.read: list[int] = []
        self.error: Exception | None = None

    def __call__(self, row: ArchiveRow) -> Manifest:
        self.read.append(row.number)
        if self.error is not None:
            raise self.error
        return manifest(self.topics.get(row.number, []))


def manifest(ids: list[int]) -> Manifest:
    topics = tuple(ArchivedTopic(name=f"t{n}", id=n) for n in ids)
    return Manifest(
        store_id="", segments=(), retention_class=MADE_AS, topics=topics, messages=1, raw_bytes=40,
        first_position=0, last_position=1, first_stored_at=START_MS, last_stored_at=START_MS,
        codec="zstd", level=3, block_bytes=1 << 18, generation=0,
    )  # fmt: skip


def at(days: float) -> int:
    return START_MS + round(days * DAY_MS)


def test_a_row_says_which_topics_an_archive_has_if_they_are_few() -> None:
    def row(ids: list[int]) -> ArchiveRow:
        return row_of(manifest(ids), number=1, place="w", key="k", tier="warm", size=1, crc=0)

    few = row([7, 3, 70_000])
    assert few.topics is not None
    assert read_topics(few.topics) == [3, 7, 70_000]
    assert decode_row(few.catalog_key, encode_row(few)) == few
    assert row(list(range(1, TOPICS_MAX + 1))).topics is not None
    assert row(list(range(1, TOPICS_MAX + 2))).topics is None


def test_a_row_of_an_older_version_is_read_and_says_nothing_of_topics() -> None:
    old = msgspec.to_builtins(ROW)
    del old["topics"]
    assert decode_row(ROW.catalog_key, msgspec.msgpack.encode(old)).topics is None


def test_a_shorter_policy_of_today_ends_an_archive_sooner_and_a_longer_one_keeps_it() -> None:
    row = msgspec.structs.replace(ROW, topics=pack_topics([1]))
    resolver = ClassResolver(Manifests())
    shorter = msgspec.structs.replace(POLICY, cold_for=DAY)
    (found,) = resolver.archives([row], today(shorter, t1=Retention()), at(10))
    assert found.kind.name == "warm8d-cold9d"
    longer = msgspec.structs.replace(POLICY, warm_for=100 * DAY)
    (found,) = resolver.archives([row], today(longer, t1=Retention()), at(10))
    assert found.kind.name == "warm101d-cold121d"


def test_of_the_topics_that_are_left_the_one_that_keeps_longest_decides() -> None:
    row = msgspec.structs.replace(ROW, topics=pack_topics([1, 2]))
    resolver = ClassResolver(Manifests())
    short, long = Retention(cold_for=DAY), Retention(cold_for=2 * DAY)
    assert resolver.class_of(row, today(t1=short, t2=long), at(1)).name == "warm8d-cold10d"
    assert resolver.class_of(row, today(t1=short, t3=long), at(1)).name == "warm8d-cold9d"
    assert resolver.class_of(row, today(t3=short), at(1)).name == MADE_AS


def test_a_topic_that_was_made_again_under_its_name_is_another() -> None:
    row = msgspec.structs.replace(ROW, topics=pack_topics([1]))
    made_again = Today(POLICY, {2: "t1"}, {"t1": TopicTraits(name="t1", retention=Retention(1))})
    assert ClassResolver(Manifests()).class_of(row, made_again, at(1)).name == MADE_AS


def test_an_archive_is_opened_once_and_only_if_its_topics_make_a_difference() -> None:
    manifests = Manifests({1: [1], 2: [1, 2]})
    resolver = ClassResolver(manifests)
    rows = [ROW, msgspec.structs.replace(ROW, number=2, key="k2")]
    known = today(t1=Retention(cold_for=DAY), t2=Retention())
    resolver.archives(rows, known, at(5))
    assert manifests.read == []
    for _ in range(3):
        kinds = [a.kind.name for a in resolver.archives(rows, known, at(10))]
        assert kinds == ["warm8d-cold9d", MADE_AS]
    assert manifests.read == [1, 2]
    resolver.archives(rows, known, at(40))
    assert manifests.read == [1, 2]


def test_of_archives_that_have_left_the_catalog_nothing_is_kept() -> None:
    manifests = Manifests({n: [1, n + 1] for n in range(1, 101)})
    resolver = ClassResolver(manifests)
    known = today(t1=Retention(cold_for=DAY))
    for n in range(1, 101):
        rows = [msgspec.structs.replace(ROW, number=m, key=f"k{m}") for m in range(n, n + 5)]
        resolver.archives(rows, known, at(10))
        resolver.topics_of(msgspec.structs.replace(ROW, number=n, key=f"k{n}"))
        assert max(inside_tiering.classes_known(resolver)) <= 6
    assert manifests.read == list(range(1, 105))


def test_one_that_cannot_be_read_is_judged_by_its_name_and_asked_again_by_the_next_run() -> None:
    manifests = Manifests({1: [1], 2: [1]})
    resolver = ClassResolver(manifests)
    rows = [ROW, msgspec.structs.replace(ROW, number=2, key="k2")]
    known = today(t1=Retention(cold_for=DAY))
    manifests.error = ArchiveDamaged("damaged", "k")
    for _ in range(2):
        assert [a.kind.name for a in resolver.archives(rows, known, at(10))] == [MADE_AS] * 2
    assert manifests.read == [1, 2]
    resolver.begin()
    manifests.error = PlaceUnavailable("away", "w")
    resolver.archives(rows, known, at(10))
    assert manifests.read == [1, 2, 1]
    resolver.begin()
    manifests.error = None
    assert [a.kind.name for a in resolver.archives(rows, known, at(10))] == ["warm8d-cold9d"] * 2


ages = st.sampled_from([None, 0.0, DAY, 5 * DAY, 40 * DAY])
retentions = st.builds(Retention, hot_for=ages, warm_for=ages, cold_for=ages)


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(1, 5), retentions, max_size=5),
    st.lists(st.integers(1, 7), max_size=4),
    st.sampled_from(["warm", "cold"]),
    st.sampled_from([MADE_AS, "cold3d", "warm2d", "warm1d-coldever"]),
    st.floats(0, 60),
    st.booleans(),
)
def test_whether_or_not_a_row_says_its_topics_the_same_becomes_of_an_archive(
    found: dict[int, Retention],
    ids: list[int],
    tier: str,
    made_as: str,
    days: float,
    is_said: bool,
) -> None:
    topics = pack_topics(ids) if is_said else None
    row = msgspec.structs.replace(ROW, tier=tier, retention_class=made_as, topics=topics)
    known = today_of({f"t{n}": retention for n, retention in found.items()})
    age = at(days) - START_MS
    judged = ClassResolver(Manifests({1: ids})).class_of(row, known, at(days))
    names = [f"t{n}" for n in ids]
    right = class_of_archive(POLICY, made_as, names, known.traits)
    assert fate(POLICY, row.tier, judged, age) == fate(POLICY, row.tier, right, age)
