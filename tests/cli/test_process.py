"""The command as a process: what it imports, how it ends, what it leaves on its streams."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from kvstore.cli import kvmq as command
from tests.cli.conftest import Kvmq

Start = Callable[..., "subprocess.Popen[bytes]"]


def test_help_names_every_verb_and_imports_none() -> None:
    program = (
        "import sys; from kvstore.cli import main\n"
        "try: main()\n"
        "finally: print([m for m in sys.modules if m.startswith('kvstore.cli.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]", "which imports them"
    named = "demo put get pull query topic stats verify dump rebuild import bench"
    for verb in named.split():
        assert f"\n  {verb} " in done.stdout


def verbs() -> list[str]:
    return command.list_commands(click.Context(command))


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help_and_json(kvmq: Kvmq, verb: str) -> None:
    found = command.get_command(click.Context(command), verb)
    assert found is not None
    for words, one in below(found, verb):
        help_text = kvmq(*words, "--help")
        assert help_text.code == 0
        assert isinstance(one, click.Group) or "--json" in help_text.out, words


def below(found: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A verb and all those below it."""
    yield words, found
    if isinstance(found, click.Group):
        context = click.Context(found)
        for name in found.list_commands(context):
            one = found.get_command(context, name)
            assert one is not None
            yield from below(one, *words, name)


def test_the_version_is_printed(kvmq: Kvmq) -> None:
    ran = kvmq("--version")
    assert (ran.code, ran.out.split()[0]) == (0, "kvmq")


def test_no_verb_or_an_unknown_one_is_wrong_usage(kvmq: Kvmq) -> None:
    assert kvmq().code == 2
    unknown = kvmq("nonsense")
    assert unknown.code == 2
    assert "nonsense" in unknown.err
    assert kvmq("nonsense", "--json").error["error"] == "NoSuchCommand"


def test_a_reader_that_goes_away_ends_it_quietly(
    process: Start, kvmq: Kvmq, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    kvmq("put", store, "t", "--create", "--queue", 0, stdin="x" * 200 + "\n" + "y\n" * 20_000)
    child = process("pull", store, "t", "--all", "--raw")
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline() == b"x" * 200 + b"\n"
    child.stdout.close()
    assert child.wait(60) == 141
    assert child.stderr.read() == b""


def test_an_interrupt_ends_it_without_a_traceback(process: Start, folder: Path) -> None:
    child = process("put", folder, "orders", "--queue", 2, "--batch", 1, "--json")
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdin.write(b"kept\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline())["offset"] == 0
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert b"Traceback" not in child.stderr.read()


def test_messages_flow_as_they_come_with_a_batch_of_one(process: Start, folder: Path) -> None:
    child = process("put", folder, "orders", "--queue", 3, "--batch", 1, "--json")
    assert child.stdin is not None
    assert child.stdout is not None
    for number in range(3):
        child.stdin.write(b"line\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["offset"] == number
