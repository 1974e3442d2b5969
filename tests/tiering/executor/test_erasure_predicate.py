"""Which messages an erasure means: by topic, with copies elsewhere, by key, by time; and that a
rewritten archive has all others.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore.errors import CallerError
from kvstore.record.properties import encode_properties
from tests.rocketmq.logs import record
from tests.support.decoding import decode
from tests.tiering.archive.making import Queue, drawn_queues
from tests.tiering.merge.merging import made_of, merged, records_in
from tiering.archive.archive_check import archive_problems
from tiering.executor.erasure_predicate import ErasurePredicate
from tiering.operations.erase import count


def raw(topic: str = "t", at: int = 1000, position: int = 0, **properties: str) -> bytes:
    return record(
        position, b"body", topic=topic, queue=0, offset=0, stored_at=at,
        properties=encode_properties(properties),
    )  # fmt: skip


def meant(match: ErasurePredicate, *records: bytes) -> list[bool]:
    found: list[bool] = match.rows(records).tolist()
    return found


def test_a_topics_messages_are_meant_and_no_others() -> None:
    assert meant(ErasurePredicate(topic="t"), raw("t"), raw("tt"), raw("u")) == [True, False, False]


@pytest.mark.parametrize("name", ["REAL_TOPIC", "RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"])
def test_copies_that_name_the_topic_they_are_from_are_meant(name: str) -> None:
    here: dict[str, Any] = {name: "t"}
    there: dict[str, Any] = {name: "u"}
    copies = raw("%RETRY%g", **here), raw("%RETRY%g", **there)
    assert meant(ErasurePredicate(topic="t"), *copies) == [True, False]


def test_a_key_is_any_of_a_messages_keys_or_its_unique_id() -> None:
    records = raw(KEYS="a b"), raw(KEYS="ab"), raw(UNIQ_KEY="b"), raw(other="b"), raw()
    assert meant(ErasurePredicate(key="b"), *records) == [True, False, True, False, False]


def test_before_a_time_means_earlier_than_it() -> None:
    assert meant(ErasurePredicate(before=1000), raw(at=999), raw(at=1000)) == [True, False]


def test_of_what_is_given_all_must_be_true() -> None:
    match = ErasurePredicate(topic="t", key="a", before=1000)
    records = raw(at=999, KEYS="a"), raw(at=999), raw(KEYS="a"), raw("u", at=999, KEYS="a")
    assert meant(match, *records) == [True, False, False, False]


def test_what_was_stored_after_the_erasure_began_is_not_meant() -> None:
    match = ErasurePredicate(topic="t", below=500)
    assert meant(match, raw(position=499), raw(position=500)) == [True, False]


def test_something_has_to_be_said() -> None:
    wrong: list[dict[str, Any]] = [
        {}, {"below": 5}, {"topic": ""}, {"key": ""}, {"key": "two keys"},
    ]  # fmt: skip
    for given_to_it in wrong:
        with pytest.raises(CallerError):
            ErasurePredicate(**given_to_it)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    drawn_queues(),
    st.one_of(
        st.integers(0, 2),
        st.builds(lambda k: ErasurePredicate(key=k), st.sampled_from(["a", "b", "x"])),
        st.builds(lambda t: ErasurePredicate(before=t), st.integers(-5, 1 << 45)),
    ),
)
def test_an_archive_that_was_rewritten_has_all_others_and_none_of_those_meant(
    queues: list[Queue], drawn: int | ErasurePredicate
) -> None:
    if not queues:
        return
    names = sorted({queue.topic.name for queue in queues if queue.topic.name}) or ["none"]
    match = ErasurePredicate(topic=names[drawn % len(names)]) if isinstance(drawn, int) else drawn
    due = {}
    for queue in queues:
        stays = {}
        for offset, one in queue.records.items():
            position = int.from_bytes(one[28:36], "big")
            message = decode(one, 0, len(one), position, check_crc=False, raw_body=True)
            keys = {*message.keys, message.message_id}
            if not (
                (match.topic is not None and match.topic == message.topic)
                or (match.key is not None and match.key in keys)
                or (match.before is not None and message.stored_at < match.before)
            ):
                stays[offset] = one
        if stays:
            due[queue.topic.name, queue.queue] = stays
    result = merged(made_of([queues]), without=match)
    if result.merged.made is None:
        assert due == {}
        return
    archive = result.open()
    assert records_in(archive) == due
    assert count(archive, match, None).found == 0
    assert list(archive_problems(archive)) == []
