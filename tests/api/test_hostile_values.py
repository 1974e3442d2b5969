"""Whatever a caller gives: what is refused is refused by an error of kvmq's that can be printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvstore
from kvstore import ConfigError, Store, StoreError
from kvstore.errors import shown

HUGE = 10**5000
Call = Callable[[Any, Any], object]


class _Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class _Odd:
    def __repr__(self) -> str:
        return "<odd \udc80>"


VALUES = [
    HUGE,
    -HUGE,
    [HUGE],
    (1, HUGE),
    "\udc80",
    "x" * 100_000,
    _Unspeakable(),
    _Odd(),
    {HUGE: 1},
]
CALLS: dict[str, Call] = {
    "pop group": lambda s, v: s.pop(v, "t"),
    "pop topic": lambda s, v: s.pop("g", v),
    "pop limit": lambda s, v: s.pop("g", "t", limit=v),
    "pop invisible_for": lambda s, v: s.pop("g", "t", invisible_for=v),
    "pop wait": lambda s, v: s.pop("g", "t", wait=v),
    "pop queue": lambda s, v: s.pop("g", "t", queue=v),
    "pop filter": lambda s, v: s.pop("g", "t", filter=v),
    "pop max_bytes": lambda s, v: s.pop("g", "t", max_bytes=v),
    "ack": lambda s, v: s.ack(v),
    "ack_batch": lambda s, v: [_raised(r) for r in s.ack_batch([v])],
    "ack_batch receipts": lambda s, v: [_raised(r) for r in s.ack_batch(v)],
    "change_invisible": lambda s, v: s.change_invisible(v, 1),
    "change_invisible time": lambda s, v: s.change_invisible("a", v),
    "redrive": lambda s, v: s.redrive(v),
    "redrive limit": lambda s, v: s.redrive("g", v),
    "commit group": lambda s, v: s.commit_offset(v, "t", 0, 0),
    "commit topic": lambda s, v: s.commit_offset("g", v, 0, 0),
    "commit queue": lambda s, v: s.commit_offset("g", "t", v, 0),
    "commit offset": lambda s, v: s.commit_offset("g", "t", 0, v),
    "commits": lambda s, v: s.commit_offsets(v),
    "a commit": lambda s, v: s.commit_offsets([v]),
    "reset offset": lambda s, v: s.reset_offset("g", "t", offset=v, queue=0),
    "reset queue": lambda s, v: s.reset_offset("g", "t", offset=0, queue=v),
    "reset time": lambda s, v: s.reset_offset("g", "t", time=v),
    "reset to": lambda s, v: s.reset_offset("g", "t", to=v),
    "reset two": lambda s, v: s.reset_offset("g", "t", to="end", time=v),
    "history": lambda s, v: s.offset_history("g", "t", v),
    "committed": lambda s, v: s.committed_offset("g", "t", v),
    "lag group": lambda s, v: s.lag(v),
    "lag topic": lambda s, v: s.lag("g", v),
    "stats": lambda s, v: s.group_stats("g", v),
    "create group": lambda s, v: s.create_group(v),
    "create group attempts": lambda s, v: s.create_group("n", max_attempts=v),
    "create group backoff": lambda s, v: s.create_group("n", backoff=v),
    "create group step": lambda s, v: s.create_group("n", backoff=[v]),
    "create group letters": lambda s, v: s.create_group("n", dead_letter_topic=v),
    "create group start": lambda s, v: s.create_group("n", start=v),
    "create group flight": lambda s, v: s.create_group("n", max_in_flight=v),
    "create group attributes": lambda s, v: s.create_group("n", attributes=v),
    "create group attribute": lambda s, v: s.create_group(
        "n", attributes={"a": v} if v != VALUES[5] else 5
    ),
    "create groups": lambda s, v: s.create_groups([v]),
    "alter group": lambda s, v: s.alter_group(v),
    "create topic": lambda s, v: s.create_topic(v),
    "create topic queues": lambda s, v: s.create_topic("n", v),
    "create topic kind": lambda s, v: s.create_topic("n", kind=v),
    "create topic keys": lambda s, v: s.create_topic("n", key_index=v),
    "create topic retention": lambda s, v: s.create_topic("n", retention=v),
    "create topic above": lambda s, v: s.create_topic("n", compress_above=v),
    "create topic codec": lambda s, v: s.create_topic("n", compression=v),
    "create topic delays": lambda s, v: s.create_topic("n", takes_delays=v),
    "create topics": lambda s, v: s.create_topics([v]),
    "delete topics": lambda s, v: s.delete_topics([v]),
    "delete groups": lambda s, v: s.delete_groups([v]),
    "get topic": lambda s, v: s.get(v, 0, 0),
    "get queue": lambda s, v: s.get("t", v, 0),
    "get offset": lambda s, v: s.get("t", 0, v),
    "read_at": lambda s, v: s.read_at(v),
    "find": lambda s, v: s.find(v),
    "query limit": lambda s, v: s.query("t", "k", limit=v),
    "offset_at": lambda s, v: s.offset_at("t", v, 0),
    "bounds": lambda s, v: s.bounds("t", v),
    "pull queue": lambda s, v: s.pull("t", v, 0),
    "pull limit": lambda s, v: s.pull("t", 0, 0, v),
    "put queue": lambda s, v: s.put("t", b"x", queue=v),
    "put topic": lambda s, v: s.put(v, b"x"),
    "put flags": lambda s, v: s.put("t", b"x", flags=v),
    "put born": lambda s, v: s.put("t", b"x", born_at=v),
    "put delay": lambda s, v: s.put("t", b"x", delay=v),
    "put level": lambda s, v: s.put("t", b"x", delay_level=v),
    "put due": lambda s, v: s.put("t", b"x", deliver_at=v),
    "put expiry": lambda s, v: s.put("t", b"x", expires_at=v),
    "put batch delay": lambda s, v: s.put_batch([kvstore.Message("t", b"x", delay=v)]),
    "prepare immunity": lambda s, v: s.prepare("t", b"x", group="g", immunity=v),
    "schedule every": lambda s, v: s.schedule("n", "t", b"x", every=v),
    "timers after": lambda s, v: s.timers(after=(v, 0)),
    "put keys": lambda s, v: s.put("t", b"x", keys=[v]),
    "put properties": lambda s, v: s.put("t", b"x", properties=v),
    "namespace": lambda s, v: s.namespace(v),
    "create namespace": lambda s, v: s.create_namespace(v),
    "create namespace topics": lambda s, v: s.create_namespace("n", [v]),
}


def _raised(result: object) -> object:
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.parametrize("name", CALLS)
def test_what_is_refused_is_refused_readably(store: Store, name: str) -> None:
    store.create_group("g")
    said: list[str] = []
    for value in VALUES:
        try:
            CALLS[name](store, value)
        except StoreError as e:
            said.append(str(e))
    assert len(said) > len(VALUES) // 2
    assert max(map(len, said)) < 2000
    assert "".join(said).encode()


def test_a_huge_number_in_the_settings_is_refused_readably() -> None:
    for settings in ({"segment_size": HUGE}, {"watermarks": (1, HUGE, 1)}, {"host": HUGE}):
        with pytest.raises(ConfigError):
            kvstore.StoreConfig(**settings)


def test_values_are_shown_as_they_are_cut_and_whatever_they_are() -> None:
    assert [shown(v) for v in (5, "a'b", None, [1.5])] == ["5", '"a\'b"', "None", "[1.5]"]
    assert shown(HUGE) == "<int of 16610 bits>"
    assert shown([HUGE]) == "<list>"
    assert shown(_Unspeakable()) == "<_Unspeakable>"
    assert shown(_Odd()) == "<odd \\udc80>"
    assert len(shown("x" * 10**6)) < 300
