"""`kvmq pop`, `ack` and `group redrive`: messages under locks, done, and back again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import kvstore
from tests.cli.conftest import Kvmq


@pytest.fixture
def folder(folder: Path) -> Path:
    """The store with a group."""
    with kvstore.open(folder) as store:
        store.create_group("g")
    return folder


def test_messages_come_with_receipts(kvmq: Kvmq, folder: Path) -> None:
    found = kvmq("pop", folder, "g", "orders", "--limit", 2, "--queue", 0, "--json").json
    assert [m["body"] for m in found] == ["order 0", "order 1"]
    assert [m["attempt"] for m in found] == [1, 1]
    assert found[0]["due_at"] > found[0]["stored_at"]
    with kvstore.open(folder) as store:
        store.ack(found[0]["receipt"])
    ran = kvmq("pop", folder, "g", "orders", "--limit", 1, "--queue", 0)
    assert "order 2" in ran.out
    assert "receipt " in ran.out
    assert "1 messages" in ran.err


def test_what_is_printed_is_acked_if_asked(kvmq: Kvmq, folder: Path) -> None:
    ran = kvmq("pop", folder, "g", "orders", "--limit", 100, "--ack")
    assert "order 39" in ran.out
    assert "receipt" not in ran.out
    assert kvmq("pop", folder, "g", "orders", "--json").json == []


def test_a_short_lock_is_soon_over(kvmq: Kvmq, folder: Path) -> None:
    for attempt in (1, 2):
        ran = kvmq("pop", folder, "g", "orders", "--queue", 0, "--invisible", 0.001, "--json")
        assert [m["attempt"] for m in ran.json] == [attempt]


def test_filters(kvmq: Kvmq, folder: Path) -> None:
    pop = ("pop", folder, "g", "orders", "--limit", 3, "--json")
    assert [m["tag"] for m in kvmq(*pop, "--filter", "paid").json] == ["paid"] * 3
    assert [m["properties"] for m in kvmq(*pop, "--sql", "region = 'eu'").json] == [
        {"region": "eu"}
    ] * 3
    assert kvmq(*pop, "--filter", "a", "--sql", "b = 1").code == 2
    wrong = kvmq(*pop, "--sql", "region =")
    assert (wrong.code, wrong.error["error"]) == (1, "FilterIllegal")
    for verb in (pop, ("pull", folder, "orders", "--json")):
        no_tag = kvmq(*verb, "--filter", "amount > 5")
        assert (no_tag.code, no_tag.error["error"]) == (1, "FilterIllegal")
        assert "--sql" in no_tag.error["message"]


def test_a_namespace(kvmq: Kvmq, folder: Path) -> None:
    with kvstore.open(folder) as store:
        view = store.namespace("ns")
        view.create_topic("orders")
        view.create_group("g")
        view.put("orders", b"ours")
    found = kvmq("pop", folder, "g", "orders", "--limit", 9, "--namespace", "ns", "--json").json
    assert [(m["topic"], m["body"]) for m in found] == [("orders", "ours")]


def test_errors_are_lines(kvmq: Kvmq, folder: Path) -> None:
    assert "no group 'x'" in kvmq("pop", folder, "x", "orders").err
    assert kvmq("pop", folder, "g", "nowhere").code == 1
    assert kvmq("pop", folder, "g", "orders", "--queue", 9).code == 1
    assert kvmq("pop", folder, "g", "orders", "--limit", 0).code == 2
    assert kvmq("pop", folder, "g", "orders", "--invisible", 0).code == 2


def test_pull_takes_sql_too(kvmq: Kvmq, folder: Path) -> None:
    pull = ("pull", folder, "orders", "--limit", 100, "--json")
    assert len(kvmq(*pull, "--sql", "region = 'eu' AND TAGS = 'paid'").json["messages"]) in (0, 20)
    assert len(kvmq(*pull, "--sql", "region = 'us'").json["messages"]) == 0
    assert len(kvmq(*pull, "--sql", "region LIKE 'e%'").json["messages"]) == 40
    assert kvmq(*pull, "--sql", "region = 'us'", "--filter", "paid").code == 2


@pytest.mark.parametrize("option", ["--invisible", "--wait"])
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e12"])
def test_a_time_that_is_none_is_refused_as_usage(
    kvmq: Kvmq, folder: Path, option: str, seconds: str
) -> None:
    ran = kvmq("pop", folder, "g", "orders", f"{option}={seconds}")
    assert (ran.code, option in ran.err) == (2, True)


@pytest.fixture
def receipts(folder: Path) -> list[str]:
    """Those of three messages that were popped."""
    with kvstore.open(folder) as store:
        store.alter_group("g", max_attempts=1)
        return [p.receipt for p in store.pop("g", "orders", limit=3, queue=0)]


def test_receipts_are_acked(kvmq: Kvmq, folder: Path, receipts: list[str]) -> None:
    assert kvmq("ack", folder, *receipts[:2]).out == "2 acked\n"
    found = kvmq("ack", folder, receipts[2], "--json").json
    assert found == [{"receipt": receipts[2], "acked": True, "error": None, "message": None}]
    with kvstore.open(folder) as store:
        assert store.group_stats("g", "orders")[0].in_flight == 0


def test_one_that_is_wrong_is_told_and_the_others_count(
    kvmq: Kvmq, folder: Path, receipts: list[str]
) -> None:
    with kvstore.open(folder) as store:
        store.change_invisible(receipts[0], 60)
    ran = kvmq("ack", folder, *receipts, "nonsense", "--json")
    assert ran.code == 1
    assert [r["error"] for r in ran.json] == ["ReceiptExpired", None, None, "ReceiptIllegal"]
    ran = kvmq("ack", folder, "nonsense")
    assert (ran.code, ran.out) == (1, "0 acked\n")
    assert "nonsense: the receipt has 8 characters" in ran.err
    assert kvmq("ack", folder).code == 2


def test_dead_letters_are_put_back(kvmq: Kvmq, folder: Path, receipts: list[str]) -> None:
    with kvstore.open(folder) as store:
        for receipt in receipts:
            store.change_invisible(receipt, 0)
        time.sleep(0.01)  # rows of one millisecond go into the next ones
        assert store.pop("g", "orders", limit=1)[0].message.offset == 3
        assert store.group_stats("g", "orders")[0].dead_letters == 3
    assert kvmq("group", "redrive", folder, "g", "--limit", 1, "--json").json == {"redriven": 1}
    assert kvmq("group", "redrive", folder, "g").out == "2 dead letters put back\n"
    assert kvmq("group", "redrive", folder, "g", "--json").json == {"redriven": 0}
    found = kvmq("pop", folder, "g", "orders", "--queue", 0, "--limit", 3, "--json").json
    assert sorted((m["offset"], m["attempt"]) for m in found) == [(0, 1), (1, 1), (2, 1)]
    assert kvmq("group", "redrive", folder, "nobody").code == 1
