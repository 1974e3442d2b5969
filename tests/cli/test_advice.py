"""Errors of the command line advise verbs, not calls."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import kvstore
from kvstore.cli import PHRASES, VERB_OF_CALL, in_verbs
from kvstore.cli import kvmq as command
from tests.cli.conftest import Kvmq

SOURCE: Final = Path(kvstore.__file__).parent


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pull", "DIR", "nope"], "`kvmq topic create`"),
        (["pop", "DIR", "nope", "orders"], "`kvmq group create`"),
        (["topic", "create", "DIR", "orders"], "`kvmq topic alter`"),
        (["namespace", "show", "DIR", "nope"], "`kvmq namespace list`"),
        (["namespace", "delete", "DIR", "nope"], "`kvmq namespace list`"),
    ],
    ids=" ".join,
)
def test_an_error_names_the_verb_that_helps(
    kvmq: Kvmq, folder: Path, words: list[str], said: str
) -> None:
    ran = kvmq(*(folder if word == "DIR" else word for word in words))
    assert (ran.code, said in ran.err) == (1, True), ran.err
    for call in ("create_", "alter_", "auto_create", "`namespaces`"):
        assert call not in ran.err
    as_json = kvmq(*(folder if word == "DIR" else word for word in words), "--json")
    assert said in as_json.error["message"]


def test_a_namespace_that_exists_is_to_be_used_by_the_option(kvmq: Kvmq, folder: Path) -> None:
    kvmq("namespace", "create", folder, "a")
    assert "--namespace a" in kvmq("namespace", "create", folder, "a").err


def test_what_is_advised_is_a_call_and_a_verb() -> None:
    for call, verb in VERB_OF_CALL.items():
        assert callable(getattr(kvstore.Store, call))
        found = command
        for word in verb.split()[1:]:
            found = found.get_command(None, word)  # type: ignore[arg-type, assignment]
            assert found is not None


def test_a_phrase_that_is_put_otherwise_is_one_of_the_stores() -> None:
    sources = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    flat = ["".join(text.split()).replace('""', "").replace('"f"', "") for text in sources]
    for phrase, _ in PHRASES:
        assert sum("".join(phrase.split()) in text for text in flat) > 1, phrase


def test_what_is_no_advice_stays_as_it_is() -> None:
    text = "topic 'with create_topics' is no name; there are namespaces, create_topic_x"
    assert in_verbs(text) == text
