"""The output of verbs, for people and for machines; errors advise verbs, not calls."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Final

import msgspec
import pytest

import kvstore
from kvstore.cli import PHRASES, VERB_OF_CALL, in_verbs
from kvstore.cli import kvmq as command
from kvstore.cli.terminal import output
from kvstore.cli.terminal.output import Output, printable, show_report, size_text
from tests.cli.conftest import Kvmq


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_in_a_pipe_is_plain_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).table(("name", "count"), [("a", 1), ("long name", 1_000_000)], title="things")
    assert capsys.readouterr().out.splitlines() == [
        "things",
        "name           count",
        "a                  1",
        "long name  1,000,000",
    ]


def test_a_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).table(("a", "b"), [])
    assert capsys.readouterr().out == "a  b\n"


def test_a_table_on_a_terminal_does_not_take_text_for_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    Output(False).table(("body",), [("[bold]x[/bold] \x1b[31m",)])
    assert "[bold]x[/bold] \\x1b[31m" in terminal.getvalue()


def test_control_characters_are_escaped_and_letters_are_not() -> None:
    assert printable("a\x1b\n\u202eß漢 ") == "a\\x1b\\n\\u202eß漢 "


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


def test_progress_shows_itself_late_and_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Output(False).progress() as report:
        report("scanning", 1, 10)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(output, "_BAR_AFTER_S", -1.0)
    with Output(False).progress() as report:
        report("scanning", 1, 10)
        report("indexing", 5, 0)
    assert "scanning" in terminal.getvalue()
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with Output(False).progress() as report:
        report("scanning", 1, 10)
    assert file.getvalue() == ""


class Inner(msgspec.Struct):
    bytes: int = 3 << 20
    seconds: float = 0.25


class Whole(msgspec.Struct):
    count: int = 12_345
    ready: bool = True
    inner: Inner = msgspec.field(default_factory=Inner)
    names: list[str] = msgspec.field(default_factory=lambda: ["a", "b"])
    parts: list[Inner] = msgspec.field(default_factory=lambda: [Inner(1, 2.0)])
    none: None = None


def test_any_report_is_shown_by_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    show_report(Output(False), Whole())
    shown = capsys.readouterr().out
    for text in ("12,345", "yes", "inner.bytes", "3,145,728 (3.0 MiB)", "0.250", "a, b", "parts"):
        assert text in shown
    show_report(Output(True), Whole())
    assert msgspec.json.decode(capsys.readouterr().out, type=Whole) == Whole()


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
