"""One key file that several processes use, and that a crash may leave half changed."""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.errors import FormatError, KeyDestroyed, StoreError
from kvstore.files import LocalFiles
from tests.support.children import Child
from tests.support.everyfile import EveryFile, faults
from tiering import KeyFile
from tiering.keys.crypto import TopicKey
from tiering.keys.key_file import file_lock
from tiering.policy.schedule import encrypted_of


class Hooked(LocalFiles):
    """Calls something before each change of a file, and counts what is read."""

    def __init__(self) -> None:
        self.before: Callable[[str, Path], None] = lambda _kind, _path: None
        self.reads = 0

    def read(self, path: Path, offset: int = 0, size: int = -1) -> bytes:
        self.reads += 1
        return super().read(path, offset, size)

    def link_or_copy(self, source: Path, target: Path) -> bool:
        self.before("link", target)
        return super().link_or_copy(source, target)

    def write_private(self, path: Path, data: bytes) -> None:
        self.before("write", path)
        super().write_private(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self.before("rename", target)
        super().rename(source, target)

    def erase(self, path: Path) -> None:
        self.before("erase", path)
        super().erase(path)

    def remove(self, path: Path) -> None:
        self.before("remove", path)
        super().remove(path)


def is_destroyed(keys: KeyFile, topic: str, key: TopicKey) -> bool:
    try:
        keys.key_for_reading(topic, key.key_id)
    except KeyDestroyed:
        return True
    return False


def test_a_key_that_is_destroyed_while_another_is_made_stays_destroyed(tmp_path: Path) -> None:
    files = Hooked()
    keys = KeyFile(tmp_path / "keys", files)
    key = keys.make("orders")
    beside = Thread(target=lambda: KeyFile(tmp_path / "keys").destroy("orders"))

    def destroyed_meanwhile(kind: str, _: Path) -> None:
        if kind == "write" and beside.ident is None:
            beside.start()
            beside.join(0.2)  # it waits for its turn

    files.before = destroyed_meanwhile
    other = keys.make("other")
    beside.join()
    for found in (keys, KeyFile(tmp_path / "keys")):
        assert is_destroyed(found, "orders", key)
        assert found.key_for_reading("other", other.key_id) == other


def test_who_waited_for_a_lock_file_that_was_removed_meanwhile_takes_the_one_of_that_name(
    tmp_path: Path,
) -> None:
    path, lock = tmp_path / "keys", tmp_path / "keys.lock"
    inside, over = Event(), Event()

    def wait_for_turn() -> None:
        with file_lock(path):
            inside.set()
            over.wait()

    def opened() -> int:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link) == str(lock) for link in links)

    waiting = Thread(target=wait_for_turn)
    with file_lock(path):
        waiting.start()
        while opened() < 2:
            waiting.join(0.01)
    inside.wait()
    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)
        over.set()
        waiting.join()
    assert list(tmp_path.iterdir()) == []


def _make_many(tell: Callable[[str], None], path: str) -> None:
    keys = KeyFile(path)
    for n in range(40):
        keys.make(f"made {n}")
    tell("done")


def test_processes_that_make_and_destroy_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = KeyFile(path)
    known = {f"old {n}": keys.make(f"old {n}") for n in range(40)}
    child = Child(_make_many, str(path))
    for topic in known:
        keys.destroy(topic)
    child.join()
    assert all(is_destroyed(keys, topic, key) for topic, key in known.items())
    assert keys.topics() == sorted(f"made {n}" for n in range(40))
    assert [found.name for found in tmp_path.iterdir()] == ["keys"]


class Killed(BaseException):
    """The process ends here."""


def _steps(tmp_path: Path) -> list[tuple[str, str]]:
    """The effects on files of destroying a key, in order."""
    files = Hooked()
    keys = KeyFile(tmp_path / "counted", files)
    keys.make("orders")
    done: list[tuple[str, str]] = []
    files.before = lambda kind, path: done.append((kind, path.suffix))
    keys.destroy("orders")
    return done


def test_a_kill_at_any_step_of_destroying_leaves_all_keys_or_all_but_one(tmp_path: Path) -> None:
    steps = _steps(tmp_path)
    assert [kind for kind, _ in steps] == ["link", "write", "rename", "erase", "remove"]
    for at in range(len(steps)):
        path = tmp_path / str(at) / "keys"
        path.parent.mkdir()
        files = Hooked()
        keys = KeyFile(path, files)
        key, kept = keys.make("orders"), keys.make("other")
        done = 0

        def killed(_kind: str, _path: Path, at: int = at) -> None:
            nonlocal done
            if done == at:
                raise Killed
            done += 1

        files.before = killed
        with pytest.raises(Killed):
            keys.destroy("orders")
        again = KeyFile(path)
        assert again.key_for_reading("other", kept.key_id) == kept
        assert [found.name for found in path.parent.iterdir()] == ["keys"]
        if is_destroyed(again, "orders", key):
            assert at > 2
            assert key.secret.hex() not in path.read_text()
        else:
            assert again.key_for_writing("orders") == key
            again.destroy("orders")
            assert key.secret.hex() not in path.read_text()


def test_what_a_crash_left_of_a_write_is_overwritten_before_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key = KeyFile(path).make("orders")
    left = path.with_name("keys.new")
    left.write_text(path.read_text())
    files, erased = Hooked(), list[Any]()
    files.before = lambda kind, at: erased.append(at) if kind == "erase" else None
    KeyFile(path, files)
    assert erased == [left]
    assert not left.exists()
    assert KeyFile(path).key_for_writing("orders") == key


def linked(tmp_path: Path) -> tuple[Path, Path]:
    """A link, and the key file that it leads to, in another folder."""
    real, link = tmp_path / "secrets" / "keys", tmp_path / "settings" / "keys"
    real.parent.mkdir()
    link.parent.mkdir()
    link.symlink_to(real)
    return link, real


def test_a_key_that_is_destroyed_by_way_of_a_link_is_gone_from_the_file_itself(
    tmp_path: Path,
) -> None:
    link, real = linked(tmp_path)
    keys = KeyFile(real)
    key, kept = keys.make("orders"), KeyFile(link).make("other")
    assert keys.topics() == ["orders", "other"]
    KeyFile(link).destroy("orders")
    assert link.is_symlink()
    assert is_destroyed(keys, "orders", key)
    assert key.secret.hex() not in real.read_text()
    assert keys.key_for_reading("other", kept.key_id) == kept
    for path in (link, real):
        assert [found.name for found in path.parent.iterdir()] == ["keys"]


@pytest.mark.parametrize("at", ["link", "write", "rename"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), Killed()], ids=["full", "killed"])
def test_destroying_by_way_of_a_link_that_fails_leaves_all_keys(
    tmp_path: Path, at: str, error: BaseException
) -> None:
    link, real = linked(tmp_path)
    files = Hooked()
    keys = KeyFile(link, files)
    key, kept = keys.make("orders"), keys.make("other")

    def failing(kind: str, _: Path) -> None:
        if kind == at:
            raise error

    files.before = failing
    with pytest.raises(type(error)):
        keys.destroy("orders")
    for path in (link, real):
        again = KeyFile(path)
        assert again.key_for_reading("orders", key.key_id) == key
        assert again.key_for_reading("other", kept.key_id) == kept
        assert [found.name for found in path.parent.iterdir()] == ["keys"]


def test_a_link_that_leads_elsewhere_is_followed_at_the_next_look(tmp_path: Path) -> None:
    link, _ = linked(tmp_path)
    keys = KeyFile(link)
    keys.make("orders")
    KeyFile(tmp_path / "others").make("events")
    (tmp_path / "next").symlink_to(tmp_path / "others")
    (tmp_path / "next").rename(link)
    assert keys.topics() == ["events"]


def test_who_may_not_write_beside_the_file_reads_it_though_a_crash_left_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    key = KeyFile(path).make("orders")
    path.with_name("keys.old").hardlink_to(path)
    opened = os.open

    def refused(name: Any, flags: int, *rest: int, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(name))
        return opened(name, flags, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        assert KeyFile(path).key_for_writing("orders") == key
    assert KeyFile(path).key_for_writing("orders") == key
    assert [found.name for found in tmp_path.iterdir()] == ["keys"]


def test_a_look_at_thousands_of_topics_reads_the_key_file_once(tmp_path: Path) -> None:
    files = Hooked()
    keys = KeyFile(tmp_path / "keys", files)
    keys.make("topic 7")
    topics: list[Any] = [SimpleNamespace(name=f"topic {n}") for n in range(3000)]
    files.reads = 0
    for _ in range(3):
        assert encrypted_of(topics, keys) == {"topic 7"}
    assert files.reads == 1
    KeyFile(tmp_path / "keys").make("topic 8")
    assert encrypted_of(topics, keys) == {"topic 7", "topic 8"}
    assert files.reads == 2


@pytest.mark.parametrize("change", ["make", "destroy"])
def test_whatever_operation_fails_a_key_file_has_all_keys_but_those_that_were_destroyed(
    tmp_path: Path, change: str
) -> None:
    def changed(path: Path, files: EveryFile) -> tuple[TopicKey, TopicKey]:
        path.mkdir()
        keys = KeyFile(path / "keys", files)
        kept = keys.make("kept")
        return kept, keys.make("changed") if change == "destroy" else kept

    files = EveryFile()
    changed(tmp_path / "counted", files)
    begin = len(files.effects)
    getattr(KeyFile(tmp_path / "counted" / "keys", files), change)("changed")
    counts = Counter(files.kinds()[begin:])
    assert counts.keys() >= {"write_private", "facts", "read"}
    assert counts["link"] == (change == "destroy")
    for number, fault in enumerate(faults(counts)):
        path, files = tmp_path / str(number), EveryFile()
        kept, key = changed(path, files)
        files.fail(fault.kind, nth=fault.nth, error=fault.error, half=fault.half)
        is_done = False
        with suppress(OSError, StoreError):
            getattr(KeyFile(path / "keys", files), change)("changed")
            is_done = True
        assert files.failed, fault
        after = KeyFile(path / "keys")
        assert after.key_for_reading("kept", kept.key_id) == kept
        if change == "destroy":
            assert is_destroyed(after, "changed", key) or not is_done, fault
            with suppress(KeyDestroyed):
                assert after.key_for_reading("changed", key.key_id) == key
            after.destroy("changed")
            assert is_destroyed(after, "changed", key)
            left = b"".join(one.read_bytes() for one in path.iterdir())
            assert key.secret.hex().encode() not in left, fault
        else:
            assert after.key_for_writing("changed") is not None or not is_done, fault
            made = after.make("changed")
            assert KeyFile(path / "keys").key_for_writing("changed") == made


def test_a_key_that_is_destroyed_while_another_is_read_costs_the_reader_nothing(
    tmp_path: Path,
) -> None:
    """The reader has opened the file that the other replaces and overwrites."""

    class Overtaken(LocalFiles):
        def read(self, path: Path, offset: int = 0, size: int = -1) -> bytes:
            if not other.topics().count("b"):
                return super().read(path, offset, size)
            length = path.stat().st_size
            other.destroy("b")
            return bytes(length)

    other = KeyFile(tmp_path / "keys")
    key = other.make("a")
    other.make("b")
    keys = KeyFile(tmp_path / "keys", Overtaken())
    assert keys.topics() == ["a"]
    assert keys.key_for_reading("a", key.key_id) == key
    (tmp_path / "keys").write_bytes(bytes(100))
    with pytest.raises(FormatError, match="not a key file"):
        keys.topics()
