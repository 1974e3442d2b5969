"""`kvmq ack`, and `kvmq group redrive`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import kvstore
from tests.cli.conftest import Kvmq


@pytest.fixture
def receipts(folder: Path) -> list[str]:
    """Those of three messages that were popped."""
    with kvstore.open(folder) as store:
        store.create_group("g", max_attempts=1)
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
