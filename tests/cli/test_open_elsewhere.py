"""A verb on a store that another program has open names the call that does the same there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import kvstore
from kvstore.cli import kvmq as command
from kvstore.cli.terminal.opening import call_text
from tests.cli.conftest import Kvmq, verbs_of

READ_ONLY: Final = {
    "dump", "find", "get", "group in-flight", "group list", "group show", "namespace list",
    "namespace show", "offset history", "offset lag", "offset show", "offset-at", "pull", "query",
    "schedule list", "schedule next", "stats",
    "tier history", "tier list", "tier plan", "timer list", "timer show", "top",
    "topic list", "topic show", "tx list", "tx show", "verify",
}  # fmt: skip
NOT_OF_A_STORE: Final = {
    "bench", "demo", "import", "rebuild", "restore", "serve", "tier key list", "tier key make",
    "token",
}  # fmt: skip
CALLS: Final[dict[tuple[str, ...], str]] = {
    ("put", "DIR", "t", "--body", "x"): "store.put_batch([kvstore.Message(...), ...])",
    ("pop", "DIR", "g", "t", "--limit", "3"): "store.pop('g', 't', 3)",
    ("put", "DIR", "t", "--body", "x", "--namespace", "n"):
        "store.namespace('n').put_batch([kvstore.Message(...), ...])",
    ("ack", "DIR", "r1", "r2"): "store.ack_batch(['r1', 'r2'])",
    ("ack", "DIR", "r1", "--namespace", "n"): "store.namespace('n').ack_batch(['r1'])",
    ("work", "DIR", "g", "t", "--", "true"): "store.consume('g', 't', run_the_command)",
    ("topic", "create", "DIR", "u", "--queues", "2"): "store.create_topic('u', 2, kind='normal'",
    ("topic", "alter", "DIR", "t", "--queues", "2"): "store.alter_topic('t', queues=2)",
    ("topic", "delete", "DIR", "t"): "store.delete_topic('t')",
    ("group", "create", "DIR", "h", "--ordered"): "store.create_group('h', ordered=True)",
    ("group", "alter", "DIR", "g", "--backoff", "1,2"): "alter_group('g', backoff=[1.0, 2.0])",
    ("group", "delete", "DIR", "g"): "store.delete_group('g')",
    ("group", "redrive", "DIR", "g"): "store.redrive('g')",
    ("group", "redrive", "DIR", "g", "--limit", "5", "--namespace", "n"):
        "store.namespace('n').redrive('g', 5)",
    ("offset", "commit", "DIR", "g", "t", "--queue", "0", "--offset", "7"):
        "store.commit_offset('g', 't', 0, 7, sync=True)",
    ("offset", "reset", "DIR", "g", "t", "--to", "end"): "store.reset_offset('g', 't', to='end')",
    ("timer", "cancel", "DIR", "i"): "store.cancel('i')",
    ("timer", "change", "DIR", "i", "--delay", "5"): "store.change_delay('i', delay=5.0)",
    ("tx", "commit", "DIR", "i", "j"): "store.commit_batch(['i', 'j'])",
    ("tx", "rollback", "DIR", "i", "--namespace", "n"):
        "store.namespace('n').rollback_batch(['i'])",
    ("schedule", "create", "DIR", "s", "t", "--every", "5", "--tag", "a"):
        "store.schedule('s', 't', b'', every=5.0, tag='a')",
    ("schedule", "pause", "DIR", "s"): "store.pause_schedule('s')",
    ("schedule", "resume", "DIR", "s"): "store.resume_schedule('s')",
    ("schedule", "delete", "DIR", "s", "--namespace", "n"):
        "store.namespace('n').delete_schedule('s')",
    ("namespace", "create", "DIR", "n"): "store.create_namespace('n')",
    ("export", "DIR", "out", "--rocketmq", "--archived"):
        "store.export_rocketmq_store('out', archived=True)",
    ("namespace", "delete", "DIR", "n"): "store.delete_namespace('n')",
    ("topic", "alter", "DIR", "t", "--retention", "hot=1d"):
        "store.alter_topic('t', retention=kvstore.Retention(hot_for=86400.0",
    ("tier", "run", "DIR", "--policy", "FILE"): "tiering.Worker(store, policy).run_once()",
    ("tier", "run", "DIR", "--policy", "FILE", "--watch"): "Worker(store, policy).start()",
    ("tier", "merge", "DIR", "--policy", "FILE"): "tiering.Worker(store, policy).merge()",
    ("tier", "merge", "DIR", "--policy", "FILE", "--topic", "t"): "Worker(store, policy).part('t')",
    ("tier", "compact", "DIR", "--policy", "FILE"): "tiering.Worker(store, policy).compact()",
    ("tier", "reencrypt", "DIR", "--policy", "FILE"): "tiering.Worker(store, policy).reencrypt()",
    ("tier", "attach", "DIR", "archives"): "tiering.attach(store, 'archives')",
    ("tier", "verify", "DIR", "--remove-orphans"): "Worker(store, policy).verify(",
    ("erase", "topic", "DIR", "t", "--policy", "FILE"):
        "tiering.Worker(store, policy).erase(topic='t')",
    ("erase", "key", "DIR", "k", "--policy", "FILE", "--everywhere"):
        "tiering.Worker(store, policy).erase(key='k', everywhere=True)",
    ("erase", "before", "DIR", "5", "--policy", "FILE"):
        "tiering.Worker(store, policy).erase(before=5)",
}  # fmt: skip


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a store that is open, and a policy beside it."""
    path = tmp_path_factory.mktemp("opened")
    (path / "policy.toml").write_text('hot_for = "1d"\nwarm = "archive"\n')
    with kvstore.open(path / "store") as store:
        store.create_topic("t")
        store.create_group("g")
        yield path


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_a_verb_names_the_call_that_does_the_same(
    kvmq: Kvmq, opened: Path, words: tuple[str, ...]
) -> None:
    named = {"DIR": opened / "store", "FILE": opened / "policy.toml"}
    ran = kvmq(*(named.get(word, word) for word in words))
    assert ran.code == 1, ran.err
    assert "is held open by" in ran.err
    assert f"does the same by {CALLS[words]}" in ran.err or CALLS[words] in ran.err


EXACT: Final[dict[tuple[str, ...], str]] = {
    ("erase", "topic", "DIR", "t", "--policy", "FILE", "--dry-run"):
        "tiering.Worker(store, policy).erasure_plan(topic='t')",
    ("group", "create", "DIR", "h", "--exist-ok"): "store.create_group('h', exist_ok=True)",
    ("group", "alter", "DIR", "g", "--max-in-flight", "none"):
        "store.alter_group('g', max_in_flight=None)",
    ("timer", "cancel", "DIR", "i", "j", "--namespace", "n"):
        "[store.namespace('n').cancel(one) for one in ('i', 'j')]",
    ("topic", "alter", "DIR", "t", "--compression", "store"):
        "store.alter_topic('t', compression=None)",
    ("pop", "DIR", "g", "t", "--queue", "1", "--filter", "a", "--invisible", "5", "--ack"):
        "store.pop('g', 't', 1, invisible_for=5.0, filter='a', queue=1) and store.ack(receipt)",
    ("pop", "DIR", "g", "t", "--ack", "--namespace", "n"):
        "store.namespace('n').pop('g', 't', 1) and store.namespace('n').ack(receipt)",
    ("pop", "DIR", "g", "t", "--sql", "a > 5"):
        "store.pop('g', 't', 1, filter=kvstore.sql('a > 5'))",
    ("work", "DIR", "g", "t", "--filter", "a", "--queue", "1", "--", "true"):
        "store.consume('g', 't', run_the_command, filter='a', queue=1)",
    ("tier", "attach", "DIR", "archives", "--topic", "t", "--store-id", "12"):
        "tiering.attach(store, 'archives', topics=['t'], options={'store_id': '12'})",
    ("namespace", "create", "DIR", "n", "--topic", "t", "--group", "g", "--exist-ok"):
        "store.create_namespace('n', topics=[kvstore.TopicConfig(name='t')], "
        "groups=[kvstore.GroupConfig(name='g')], exist_ok=True)",
}  # fmt: skip


@pytest.mark.parametrize("words", EXACT, ids=" ".join)
def test_the_call_has_all_that_the_verb_was_given(
    kvmq: Kvmq, opened: Path, words: tuple[str, ...]
) -> None:
    """A dry run named the call that erases; filters and topics were left out."""
    named = {"DIR": opened / "store", "FILE": opened / "policy.toml"}
    ran = kvmq(*(named.get(word, word) for word in words))
    assert ran.code == 1, ran.err
    assert ran.err.rstrip().endswith(f"does the same by {EXACT[words]}")
    assert eval(f"lambda: ({EXACT[words]})")  # a program can have it so


def test_a_rebuild_says_that_no_call_does_the_same(kvmq: Kvmq, opened: Path) -> None:
    ran = kvmq("rebuild", opened / "store")
    assert ran.code == 1
    assert "is held open by" in ran.err
    assert "no call of the program that has it open does the same" in ran.err


def test_these_tests_know_every_verb_that_writes() -> None:
    tried = {" ".join(words[: words.index("DIR")]) for words in CALLS}
    names = {name for name, _ in verbs_of(command)}
    spark = {name for name in names if name.startswith("spark")}
    others = {name for name in names if name.startswith("erase")}
    assert names - spark - others == ((tried - others) | READ_ONLY | NOT_OF_A_STORE)


def test_a_call_is_written_as_a_program_has_it() -> None:
    written: list[tuple[str, str]] = [
        (call_text("lag", "g", None), "store.lag('g')"),
        (call_text("lag", "g", "t", namespace="n"), "store.namespace('n').lag('g', 't')"),
        (call_text("reset_offset", "g", time=5, to=None), "store.reset_offset('g', time=5)"),
    ]
    assert all(one == other for one, other in written)
    names: Any = [text.split(".")[-1].split("(")[0] for _, text in written]
    assert all(hasattr(kvstore.Store, name) for name in names)
