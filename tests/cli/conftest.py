"""Runs the command in this process, or as a real one, and makes small stores to run it on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import kvstore
from kvstore import Message, StoreConfig
from kvstore.cli import kvmq as command
from tests.support.clock import VirtualClock

SMALL = StoreConfig(segment_size=1 << 20)


@dataclass(frozen=True)
class Ran:
    """The outcome of a command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """Standard error as one JSON object."""
        return json.loads(self.err)


Kvmq = Callable[..., Ran]


@pytest.fixture
def kvmq() -> Kvmq:
    """Runs `kvmq WORDS...` here."""

    def run(*words: object, stdin: str | bytes | None = None) -> Ran:
        result = CliRunner().invoke(command, [str(word) for word in words], input=stdin)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


def verbs_of(group: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """The verbs below a command, by their words."""
    if not isinstance(group, click.Group):
        yield name, group
        return
    context = click.Context(group)
    for word in group.list_commands(context):
        verb = group.get_command(context, word)
        assert verb is not None
        yield from verbs_of(verb, f"{name} {word}".strip())


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `python -m kvstore WORDS...`; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kvstore", *(str(word) for word in words)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream:
                stream.close()
        child.wait()


@pytest.fixture(scope="session")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store"
    with kvstore.open(path, config=SMALL) as store:
        store.create_topic("orders", queues=4)
        for number in range(40):
            store.put_batch([order(number)])
        store.put_batch([Message("orders", b"\xff\x00", queue=1)])
    return path


@pytest.fixture
def folder(_made_once: Path, tmp_path: Path) -> Path:
    """A store with topic "orders": 40 messages in queue 0, 1 in queue 1, none in 2 and 3."""
    return Path(shutil.copytree(_made_once, tmp_path / "store"))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store of November 2023: one topic, over three sealed segments. Some modules have another
    one.
    """
    clock = VirtualClock(1_700_000_000_000)
    path = tmp_path / "old"
    with kvstore.open(path, StoreConfig(segment_size=64 << 10, clock=clock)) as store:
        store.create_topic("orders", queues=2)
        for number in range(200):
            body = b"%d" % number + bytes(1000)
            store.put_batch([Message("orders", body, queue=number % 2, keys=(f"o-{number}",))])
    return path


@pytest.fixture
def policy(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file with the policy of the test's module."""
    path = tmp_path / "policy.toml"
    path.write_text(request.module.POLICY)
    return path


def order(number: int) -> Message:
    """Message `number` of the store: odd ones are paid, every fourth is of customer 4."""
    return Message(
        "orders",
        f"order {number}".encode(),
        queue=0,
        tag="paid" if number % 2 else "made",
        keys=(f"o-{number}", f"c-{number % 8}"),
        properties={"region": "eu"},
    )
