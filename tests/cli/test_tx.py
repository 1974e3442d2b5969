"""`kvmq tx`: prepared messages, listed, shown, committed and rolled back."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore import Message, PutResult
from tests.cli.conftest import Kvmq
from tests.support.stores import flip


@pytest.fixture
def prepared(folder: Path) -> list[PutResult]:
    """Three messages of group "pay", and a set of two of group "ship"."""
    with kvstore.open(folder) as store:
        messages = [Message("orders", b"%d" % n, queue=n, keys=["k"]) for n in range(3)]
        found = store.prepare_batch(messages, group="pay", immunity=3600)
        found += store.prepare_batch(
            [Message("orders", b"a", message_id="set"), Message("orders", b"b")],
            group="ship", set_id="set", immunity=7200,
        )  # fmt: skip
        return found


def test_prepared_messages_are_listed_by_group_and_page(
    kvmq: Kvmq, folder: Path, prepared: list[PutResult]
) -> None:
    ran = kvmq("tx", "list", folder, "--json").json
    assert [one["body"] for one in ran["messages"]] == ["0", "1", "2", "a", "b"]
    assert (ran["count"], ran["next"]) == (5, None)
    page = kvmq("tx", "list", folder, "pay", "--limit", 2, "--json").json
    assert [one["group"] for one in page["messages"]] == ["pay", "pay"]
    rest = kvmq("tx", "list", folder, "pay", "--after", page["next"], "--json").json
    assert [one["body"] for one in rest["messages"]] == ["2"]
    text = kvmq("tx", "list", folder)
    assert "with its set" in text.out
    assert text.err == "5 messages wait\n"
    assert kvmq("tx", "list", folder, "pay").err == "5 messages wait, of all groups\n"
    nobody = kvmq("tx", "list", folder, "nobody")
    assert nobody.err == "5 messages wait, of all groups\n", "its own are not counted"


def test_a_list_goes_on_behind_messages_of_other_groups_until_it_has_as_many_as_asked_for(
    kvmq: Kvmq, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.timing.timer_rows.LOOKED_MAX", 10)
    with kvstore.open(folder) as store:
        for n in range(4):
            store.prepare("orders", b"%d" % n, group="pay", immunity=605 + 30 * n)
            store.prepare_batch([Message("orders", b"x")] * 30, group="ship", immunity=606 + 30 * n)
    first = kvmq("tx", "list", folder, "pay", "--limit", 3, "--json").json
    assert [m["body"] for m in first["messages"]] == ["0", "1", "2"]
    last = kvmq("tx", "list", folder, "pay", "--after", first["next"], "--json").json
    assert ([m["body"] for m in last["messages"]], last["next"]) == (["3"], None)


def test_a_prepared_message_is_shown_with_its_transaction(
    kvmq: Kvmq, folder: Path, prepared: list[PutResult]
) -> None:
    shown = kvmq("tx", "show", folder, prepared[4].message_id, "--json").json
    assert (shown["body"], shown["set_id"], shown["topic"]) == ("a", "set", "orders")
    assert (shown["group"], shown["checks"], shown["offset"]) == ("ship", 0, None)
    rows = kvmq("tx", "show", folder, prepared[0].message_id).out
    assert "pay" in rows


@pytest.mark.parametrize("number", [3, 4])
def test_a_set_with_a_damaged_message_is_rolled_back_and_not_committed(
    kvmq: Kvmq, folder: Path, prepared: list[PutResult], number: int
) -> None:
    flip(folder, prepared[number].position)
    listed = kvmq("tx", "list", folder, "ship", "--json").json
    assert [one["body"] for one in listed["messages"]] == ["b" if number == 3 else "a"]
    ids = [one.message_id for one in prepared[3:]]
    for message_id in ids:
        refused = kvmq("tx", "commit", folder, message_id, "--json")
        assert (refused.code, refused.error["error"]) == (1, "RecordDamaged")
        assert "roll it back" in refused.error["message"]
        shown = kvmq("tx", "show", folder, message_id, "--json").json
        assert shown["set_id"] == "set"
    assert kvmq("tx", "rollback", folder, ids[number - 3]).code == 0
    assert kvmq("tx", "list", folder, "--json").json["count"] == 3


def test_transactions_are_ended_all_or_none(
    kvmq: Kvmq, folder: Path, prepared: list[PutResult]
) -> None:
    ids = [one.message_id for one in prepared]
    ran = kvmq("tx", "commit", folder, ids[0], ids[3], "--json")
    assert [(line["topic"], line["offset"] >= 0) for line in ran.json] == [("orders", True)] * 3
    assert kvmq("tx", "rollback", folder, ids[1]).code == 0
    refused = kvmq("tx", "rollback", folder, ids[2], ids[0], "--json")
    assert (refused.code, refused.error["error"]) == (1, "TransactionEnded")
    assert kvmq("tx", "list", folder, "--json").json["count"] == 1
    assert kvmq("tx", "commit", folder, "nonsense").code == 1
    assert kvmq("tx", "show", folder, ids[0]).code == 1


def test_a_namespace_has_its_own_transactions(kvmq: Kvmq, folder: Path) -> None:
    with kvstore.open(folder) as store:
        view = store.namespace("ten")
        view.create_topic("t")
        put = view.prepare("t", b"x", group="pay", immunity=3600)
    page = kvmq("tx", "list", folder, "pay", "--namespace", "ten", "--json").json
    assert [(one["topic"], one["group"]) for one in page["messages"]] == [("t", "pay")]
    assert kvmq("tx", "commit", folder, put.message_id, "--namespace", "ten").code == 0
