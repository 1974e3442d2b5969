"""Paths: `~` is home wherever a path is given, and other values than paths are refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import kvstore
import tiering
from kvstore import ArchiveAccess, CallerError, ConfigError, StoreConfig, StoreError
from kvstore.cli import kvmq as command
from kvstore.cli.terminal.options import LocalFile, LocalPath
from kvstore.files import local_path
from tests.fixtures import unpack_fixture
from tests.support.naming import named
from tiering.places.place import open_place
from tiering.spark.options import read_options, sink_options

SMALL = StoreConfig(segment_size=64 << 10)
NO_PATHS: list[Any] = ["", "a\0b", None, 5, b"data", ["data"]]
URLS = ["redis://localhost:6379/0", "kvmq+unix:///run/kvmq.sock", "file:///data", "s3://bucket/a"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of its own, and another folder to be in."""
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "home"


async def _open_aio(path: Any) -> None:
    async with kvstore.aio.open(path, SMALL):
        pass


TAKERS: dict[str, Callable[[Any], object]] = {
    "open": lambda path: kvstore.open(path, SMALL).close(),
    "open read-only": lambda path: kvstore.open(path, read_only=True),
    "aio.open": lambda path: asyncio.run(_open_aio(path)),
    "rebuild": kvstore.rebuild,
    "import from": lambda path: kvstore.import_rocketmq(path, "new"),
    "import to": lambda path: kvstore.import_rocketmq("old", path),
    "restore to": lambda path: tiering.restore("archives", path),
    "key file": tiering.KeyFile,
}


@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_no_path_is_refused_and_nothing_is_made(taker: str, home: Path) -> None:
    for wrong in [*NO_PATHS, *URLS, Path("redis://localhost/0")]:
        with pytest.raises(CallerError, match="give a path on this machine") as caught:
            TAKERS[taker](wrong)
        assert isinstance(caught.value, StoreError)
        assert isinstance(caught.value, ValueError)
    assert os.listdir() == os.listdir(home) == []


@pytest.mark.parametrize("given", [*NO_PATHS, *URLS], ids=named)
def test_a_path_of_another_kind_is_refused_too(given: Any, home: Path) -> None:
    with kvstore.open("s", SMALL) as store:
        for call in (store.export_rocketmq, store.import_rocketmq_config):
            with pytest.raises(CallerError, match="give a path"):
                call(given)


def test_no_error_shows_the_password_in_a_url() -> None:
    for wrong in ("redis://me:secret@host/0", Path("redis://me:secret@host/0")):
        with pytest.raises(CallerError) as caught:
            kvstore.open(wrong)
        assert "redis://" in str(caught.value)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError) as refused:
        open_place(Path("s3://me:secret@bucket/a"))
    assert "secret" not in str(refused.value)


def test_a_home_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CallerError, match=r"~no-such-user.*begin it with \./"):
        kvstore.open("~no-such-user/data")


def test_a_name_with_a_colon_or_a_tilde_inside_is_a_path() -> None:
    for name in ("a:b", "./redis:/x", "C:/x", "2026-11-22T11:00/x", "a~b", "./~x", "a/~"):
        assert local_path(name) == Path(name)


def test_a_store_in_the_home_folder_is_found_by_every_call(home: Path, tmp_path: Path) -> None:
    fixture = unpack_fixture("classic", tmp_path / "fixture")
    os.rename(fixture.store, home / "old")
    kvstore.import_rocketmq("~/old", "~/imported")
    with kvstore.open("~/data", SMALL) as store:
        assert store.path == home / "data"
        store.create_topic("t", queues=1)
        store.put("t", b"x")
        store.export_rocketmq("~/exported")
        assert store.import_rocketmq_config("~/exported").kept
    kvstore.rebuild("~/data")
    asyncio.run(_open_aio("~/data"))
    with kvstore.open(Path("~/data"), read_only=True) as reader:
        assert reader.get("t", 0, 0).body == b"x"
    assert sorted(os.listdir(home)) == ["data", "exported", "imported", "old"]
    assert os.listdir() == []


def test_keys_and_places_are_found_in_the_home_folder(home: Path) -> None:
    keys = tiering.KeyFile("~/keys.json")
    keys.make("orders")
    assert (home / "keys.json").is_file()
    config = StoreConfig(segment_size=64 << 10, archives=ArchiveAccess(keys="~/keys.json"))
    with kvstore.open("~/data", config) as store:
        policy = tiering.Policy(hot_for=0, warm="~/archives")
        store.create_topic("orders", queues=1)
        store.put("orders", b"x" * 1000)
        store.seal()
        with tiering.Worker(store, policy) as worker:
            worker.run_once()
            assert len(worker.archives()) == 1
        assert store.get("orders", 0, 0).body == b"x" * 1000
    with pytest.raises(ConfigError, match="no file is there"):
        kvstore.open("~/data", StoreConfig(archives=ArchiveAccess(keys="~/others.json")))
    (home / "to").mkdir()
    tiering.restore("~/archives", "~/to", config=config)
    with kvstore.open("~/to", config) as store:
        assert store.get("orders", 0, 0).body == b"x" * 1000
    assert sorted(os.listdir(home)) == ["archives", "data", "keys.json", "to"]
    assert os.listdir() == []


def test_spark_reads_and_writes_in_the_home_folder(home: Path) -> None:
    assert read_options({"path": "~/data"}).path == str(home / "data")
    assert read_options({"path": "s3://b/a"}).path == "s3://b/a"
    assert sink_options({"path": "~/archives"}).path == str(home / "archives")


def test_a_store_stays_where_it_was_opened_when_the_process_changes_its_folder(
    home: Path,
) -> None:
    with kvstore.open("data", SMALL) as store:
        store.create_topic("t", queues=1)
        os.chdir(home)
        results = [store.put("t", bytes(10_000)) for _ in range(30)]
        assert results[-1].position >> 16 > 3, "it went over borders of segments"
        assert [len(store.get("t", 0, n).body) for n in range(30)] == [10_000] * 30
        assert store.verify().problems == []
    assert os.listdir(home) == []


def test_the_command_line_finds_files_at_home(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def kvmq(*words: str) -> int:
        with pytest.raises(SystemExit) as left:
            command.main(list(words))
        code = left.value.code
        assert isinstance(code, int)
        return code

    (home / "kvmq.toml").write_text("segment_size = 65536\n")
    (home / "lines.txt").write_text("one\ntwo\n")
    assert kvmq("topic", "create", "~/data", "t", "--config=~/kvmq.toml") == 0
    assert kvmq("put", "~/data", "t", "~/lines.txt") == 0
    assert (home / "data" / "commitlog").is_dir()
    capfd.readouterr()
    assert kvmq("topic", "create", "redis://me:secret@host/0", "t") == 1
    told = capfd.readouterr().err
    assert "redis:// URL" in told
    assert "secret" not in told
    assert os.listdir() == []


def _verbs(group: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        return [(name, group)]
    context = click.Context(group)
    found = [(word, group.get_command(context, word)) for word in group.list_commands(context)]
    return [one for word, verb in found if verb for one in _verbs(verb, f"{name} {word}")]


def test_every_verb_takes_every_path_so() -> None:
    verbs = _verbs(command, "kvmq")
    assert len(verbs) > 40
    for name, verb in verbs:
        for option in verb.params:
            plain = isinstance(option.type, click.Path | click.File)
            assert not plain or isinstance(option.type, LocalPath | LocalFile), (name, option.name)
