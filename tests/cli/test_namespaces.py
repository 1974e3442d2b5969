"""`--namespace`: which verbs have it, and that a verb with it sees and changes its own alone.

The idea: a store has two tenants, in a namespace each, and as much again without one. A verb with
`--namespace` answers as it does on a store that has what the namespace has, and nothing else; what
the others have stays as it was.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pytest

import kvstore
from kvstore import Message
from kvstore.cli import kvmq as command
from tests.cli.conftest import SMALL, Kvmq, Ran, verbs_of
from tests.support.served import serving

TENANT: Final = "tenant"
VERBS: Final = dict(verbs_of(command))
DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "groups.md"
HOUR: Final = 3600.0
LONG: Final = 1e9
"""Seconds: nothing of a test happens so late."""

TRIED: Final = (
    "topic create DIR fresh --queues 2",
    "topic list DIR",
    "topic show DIR orders",
    "topic alter DIR orders --queues 3",
    "topic delete DIR orders",
    "put DIR orders --body hello --key k-1",
    "put DIR orders -",
    "put DIR orders - --jsonl",
    "put DIR fresh - --create",
    "get DIR orders --queue 0 --offset 1",
    "get DIR --position POSITION",
    "get DIR --id MESSAGE",
    "pull DIR orders --queue 0 --limit 2",
    "pull DIR orders --all",
    "query DIR orders o-1",
    "find DIR MESSAGE",
    "offset-at DIR orders 2000-01-01T00:00",
    "pop DIR billing orders --limit 9",
    "pop DIR audit orders --ack",
    "ack DIR RECEIPT",
    "work DIR billing orders --until-empty -- true",
    "timer list DIR",
    "timer list DIR orders --limit 1",
    "timer show DIR DELAYED",
    "timer cancel DIR DELAYED",
    "timer change DIR DELAYED --delay 7200",
    "tx list DIR",
    "tx list DIR pay",
    "tx show DIR PREPARED",
    "tx commit DIR PREPARED",
    "tx rollback DIR PREPARED",
    "group create DIR fresh --max-attempts 3",
    "group list DIR",
    "group show DIR billing",
    "group in-flight DIR billing",
    "group alter DIR billing --max-attempts 9",
    "group delete DIR billing",
    "group redrive DIR billing",
    "offset show DIR audit orders",
    "offset commit DIR audit orders --queue 0 --offset 1",
    "offset reset DIR audit orders --to begin",
    "offset history DIR audit orders --queue 0",
    "offset lag DIR",
    "offset lag DIR audit orders",
    "schedule create DIR fresh orders --every 1000000000",
    "schedule list DIR",
    "schedule next DIR nightly --count 2",
    "schedule pause DIR nightly",
    "schedule resume DIR halted",
    "schedule delete DIR nightly",
    "top DIR --once --interval 0.05",
)
NAMES: Final = re.compile(r"\b(orders|billing|audit|nightly|halted|pay)\b")
LINES: Final = '{"body": "a"}\n{"body": "b", "topic": "payments"}\n'

VARYING: Final = {
    "SCHEDULED_AT", "delays", "id", "keys_since", "log_bytes", "message_id", "next", "per_second",
    "position", "position_id", "receipt", "rolled_back", "seconds", "since", "size",
}  # fmt: skip
"""Fields that differ from store to store: ids, places in the log, durations."""
TIMES: Final = 10**12
"""Numbers from here on are times, ms since the epoch."""


class Made(NamedTuple):
    """The place and ids of things that `fill` made, for verbs to name."""

    position: int
    message: str
    delayed: str
    prepared: str
    receipt: str

    def words(self, line: str, folder: Path) -> list[str]:
        named = {"DIR": str(folder)} | {k.upper(): str(v) for k, v in self._asdict().items()}
        return [named.get(word, word) for word in line.split()]


class Filled(NamedTuple):
    """A store's folder, and the things in it that verbs name."""

    folder: Path
    made: Made


def fill(calls: kvstore.Store | kvstore.Namespace, count: int) -> Made:
    """Makes topics, groups, schedules, and messages in every state; `count` of those that wait in
    queue 0.
    """
    calls.create_topic("orders", queues=2)
    calls.create_topic("payments", queues=1)
    calls.create_group("billing", max_attempts=1)
    calls.create_group("audit")
    batch = [Message("orders", b"%d" % i, queue=0, keys=(f"o-{i}",)) for i in range(count)]
    placed = calls.put_batch([*batch, Message("orders", b"x", queue=1)])
    # A dead letter, and two under lock.
    (failed,) = calls.pop("billing", "orders", queue=0)
    calls.change_invisible(failed.receipt, 0)
    locked = calls.pop("billing", "orders", 2, queue=0, invisible_for=HOUR)
    calls.commit_offset("audit", "orders", 0, 2)
    delayed = [calls.put("orders", b"later", queue=0, delay=HOUR) for _ in range(count)]
    prepared = [calls.prepare("orders", b"maybe", queue=0, group="pay") for _ in range(count)]
    calls.schedule("nightly", "orders", b"n", every=LONG)
    calls.schedule("halted", "payments", b"h", every=LONG)
    calls.pause_schedule("halted")
    ids = placed[1].message_id, delayed[0].message_id, prepared[0].message_id
    return Made(placed[1].position, *ids, locked[0].receipt)


def contents(calls: kvstore.Store | kvstore.Namespace) -> dict[str, Any]:
    """All that a tenant has, with the names it has for it."""
    topics = calls.topics()
    if isinstance(calls, kvstore.Store):
        topics = [info for info in topics if info.name.removeprefix("%DLQ%").isalpha()]
    own = {info.name for info in topics}
    groups = [info for info in calls.groups() if info.name.isalpha()]
    return {
        "topics": {
            one.name: (
                one.write_queues,
                [calls.bounds(one.name, q) for q in range(one.read_queues)],
            )
            for one in topics
        },
        "groups": {
            one.name: (
                one.max_attempts,
                [(x.topic, x.queue, x.committed, x.lag, x.in_flight) for x in calls.lag(one.name)],
            )
            for one in groups
        },
        "schedules": {s.name: s.next_at is None for s in calls.schedules() if s.name.isalpha()},
        "delayed": sum(one.topic in own for one in calls.timers(limit=99).messages),
        "prepared": sum(one.topic in own for one in calls.transactions(limit=99).messages),
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A store that has what the tenant has, and nothing else."""
    folder = tmp_path_factory.mktemp("alone") / "store"
    with kvstore.open(folder, config=SMALL) as store:
        return Filled(folder, fill(store, 5))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A store in which others have more under the same names than the tenant."""
    folder = tmp_path_factory.mktemp("shared") / "store"
    with kvstore.open(folder, config=SMALL) as store:
        fill(store, 7)
        fill(store.namespace("other"), 9)
        return Filled(folder, fill(store.namespace(TENANT), 5))


def seen(store: kvstore.Store) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All that the tenant has, and all that each of the others has."""
    return contents(store.namespace(TENANT)), [contents(store), contents(store.namespace("other"))]


def is_of_the_store(row: Any) -> bool:
    """Whether a row is about a topic in which the store keeps what waits."""
    names = (row.get("name"), row.get("topic")) if isinstance(row, dict) else ()
    return any(str(name).lower().startswith("rmq_sys_") for name in names)


def varying_hidden(value: Any) -> Any:
    if isinstance(value, dict):
        names = [name for name in value if not name.endswith("_per_second")]
        return {n: None if n in VARYING else varying_hidden(value[n]) for n in names}
    if isinstance(value, list):
        return [varying_hidden(one) for one in value if not is_of_the_store(one)]
    return "a time" if isinstance(value, int) and value > TIMES else value


def answer(ran: Ran) -> tuple[int, list[Any], str]:
    """A verb's exit code, the JSON values that it printed, and its errors."""
    assert TENANT not in ran.out + ran.err, ran.out + ran.err
    found, rest, decoder = [], ran.out.strip(), json.JSONDecoder()
    while rest:  # one document, or a line for each
        value, end = decoder.raw_decode(rest)
        found.append(varying_hidden(value))
        rest = rest[end:].lstrip()
    return ran.code, found, ran.err


def run(kvmq: Kvmq, line: str, filled: Filled, *options: str) -> Ran:
    words = filled.made.words(line, filled.folder)
    at = words.index("--") if "--" in words else len(words)
    return kvmq(*words[:at], *options, *words[at:], stdin=LINES)


@pytest.mark.parametrize("line", TRIED)
def test_a_verb_with_the_option_does_as_in_a_store_of_the_namespace_alone(
    kvmq: Kvmq, alone: Filled, shared: Filled, tmp_path: Path, line: str
) -> None:
    copies = [
        Filled(Path(shutil.copytree(one.folder, tmp_path / name)), one.made)
        for name, one in (("alone", alone), ("embedded", shared), ("served", shared))
    ]
    wanted = answer(run(kvmq, line, copies[0], "--json"))
    with kvstore.open(copies[0].folder) as store:
        left = contents(store)
    with kvstore.open(shared.folder, read_only=True) as store:
        others = seen(store)[1]
    assert answer(run(kvmq, line, copies[1], "--namespace", TENANT, "--json")) == wanted
    with kvstore.open(copies[1].folder) as store:
        assert seen(store) == (left, others)
    with kvstore.open(copies[2].folder) as store:
        with serving(store):
            assert answer(run(kvmq, line, copies[2], "--namespace", TENANT, "--json")) == wanted
        assert seen(store) == (left, others)


@pytest.fixture(scope="module")
def stood_open(shared: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """A served copy of the store, for lines that change nothing."""
    folder = Path(shutil.copytree(shared.folder, tmp_path_factory.mktemp("open") / "store"))
    with kvstore.open(folder) as store, serving(store):
        yield Filled(folder, shared.made)


@pytest.mark.parametrize(
    "line",
    [line for line in TRIED if NAMES.search(line) or re.search("[A-Z]{5}", line)],
)
def test_an_error_names_things_as_the_namespace_does(
    kvmq: Kvmq, alone: Filled, shared: Filled, stood_open: Filled, line: str
) -> None:
    nobodys = "0A00000200002A9F00000000FFFFFF00"
    absent = Made(1 << 40, nobodys, nobodys, nobodys, "no-receipt")
    line = NAMES.sub(r"absent-\g<0>", line)
    wanted = run(kvmq, line, Filled(alone.folder, absent))
    for filled in (shared, stood_open):
        ran = run(kvmq, line, Filled(filled.folder, absent), "--namespace", TENANT)
        assert (ran.code, ran.out) == (wanted.code, wanted.out)
        assert f"{TENANT}%" not in ran.err
        names = re.compile("absent-[a-z]+")
        assert names.findall(ran.err) == names.findall(wanted.err)


@pytest.mark.parametrize("verb", ["find DIR", "get DIR --id"])
def test_a_message_that_waits_is_shown_with_the_option_as_without(
    kvmq: Kvmq, alone: Filled, shared: Filled, stood_open: Filled, verb: str
) -> None:
    for name in ("DELAYED", "PREPARED"):
        line = f"{verb} {name}"
        wanted = run(kvmq, line, alone, "--json").json
        assert wanted["topic"].lower().startswith("rmq_sys_")
        for filled in (shared, stood_open):
            ran = run(kvmq, line, filled, "--namespace", TENANT, "--json")
            assert TENANT not in ran.out
            for field in ("topic", "body", "tag", "keys", "properties"):
                assert ran.json[field] == wanted[field]
            assert run(kvmq, line, filled, "--namespace", "third").code == 1


def test_the_lines_try_every_verb_that_has_the_option() -> None:
    tried = {line[: line.index(" DIR")] for line in TRIED}
    assert tried == {name for name, verb in VERBS.items() if has_option(verb)}


def has_option(verb: click.Command) -> bool:
    return any("--namespace" in option.opts for option in verb.params)


def without_option() -> set[str]:
    """Verbs, and groups of verbs, that the document says have no such option."""
    rows = re.search(
        r"\| verbs without `--namespace` \| why \|\n\|---\|---\|\n((?:\|.*\n)+)",
        DOCUMENT.read_text(encoding="utf-8"),
    )
    assert rows is not None
    return {
        verb
        for row in rows[1].splitlines()
        for verb in re.findall(r"`([a-z -]+)`", row.split("|")[1])
    }


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_takes_a_namespace_or_the_document_says_why_it_does_not(name: str) -> None:
    is_said = bool({name, name.split(maxsplit=1)[0]} & without_option())
    assert is_said != has_option(VERBS[name]), name


def test_the_document_names_verbs_that_there_are() -> None:
    assert without_option() <= {*VERBS, *(name.split()[0] for name in VERBS)}


@pytest.mark.parametrize("line", ["topic create DIR t", "put DIR t --create --body x"])
def test_no_store_is_made_for_a_namespace_that_can_not_be(
    kvmq: Kvmq, tmp_path: Path, line: str
) -> None:
    words = line.replace("DIR", str(tmp_path / "new")).split()
    ran = kvmq(*words, "--namespace", "a%b", "--json")
    assert (ran.code, ran.error["error"]) == (1, "CallerError")
    assert not (tmp_path / "new").exists()
