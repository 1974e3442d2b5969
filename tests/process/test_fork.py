"""A store on both sides of a fork: the child has no part in it, and the parent notices nothing.

Each test forks in a process of its own: RocksDB's threads stay behind in a fork, and these tests
must not leave pytest's own process without them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import pytest

import kvstore
import kvstore.aio
import tiering
import tiering.executor.pool
from kvstore import Store, StoreForked, StoreLocked
from kvstore.files import LocalFiles
from kvstore.process.forking import module_lock
from tests.support import inside, inside_tiering
from tests.support.children import FORK_PATIENCE, Teller, forked, in_child
from tests.support.stores import SMALL

_NOT_CALLS: Final = frozenset({"close", "stop", "path", "name", "history", "policy"})


def _given(call: Callable[..., Any]) -> dict[str, Any]:
    """Arguments that a call may be made with."""
    values = {
        "names": ["t"],
        "configs": [],
        "commits": [],
        "receipts": [],
        "receipt": "r",
        "messages": [],
        "handler": print,
    }
    numbers = {"queue", "offset", "position", "limit", "time", "invisible_for"}
    return {
        name: values.get(name, 0 if name in numbers else "t")
        for name, asked in inspect.signature(call).parameters.items()
        if asked.default is asked.empty
        and asked.kind not in (asked.VAR_POSITIONAL, asked.VAR_KEYWORD)
    }


def _refuses(handle: object) -> None:
    """Every public call of a handle raises `StoreForked`."""
    for name in dir(type(handle)):
        if name.startswith("_") or name in _NOT_CALLS:
            continue
        try:
            call = getattr(handle, name)
            found = call(**_given(call)) if callable(call) else None
            if inspect.isawaitable(found):
                asyncio.run(_wait_for(found))
        except StoreForked:
            pass
        else:
            raise AssertionError(f"{type(handle).__name__}.{name} did not refuse")


async def _wait_for(call: Any) -> None:
    await asyncio.wait_for(call, FORK_PATIENCE)


def _store(path: str) -> Store:
    store = kvstore.open(path, SMALL)
    store.create_topic("t", queues=1)
    store.put("t", b"of the parent")
    store.checkpoint()
    return store


def _refused_everywhere(tell: Teller, path: str) -> None:
    asyncio.run(_refused_with_loop(tell, path))


async def _refused_with_loop(tell: Teller, path: str) -> None:
    with _store(path) as store, kvstore.open(path, read_only=True) as reader:
        store.create_namespace("n")
        loop_store = await kvstore.aio.open(f"{path}.aio", SMALL)
        await loop_store.create_namespace("n")
        await loop_store.create_topic("t")
        worker = tiering.Worker(store, tiering.Policy(hot_for=60, warm_for=600, warm="archive"))
        worker.start()
        captured = store.put
        handles = [
            store, reader, store.namespace("n"), reader.namespace("n"), loop_store,
            loop_store.namespace("n"), worker,
        ]  # fmt: skip

        def child() -> None:
            for handle in handles:
                _refuses(handle)
            with pytest.raises(StoreForked, match="is a fork"):
                captured("t", b"of the child")
            with pytest.raises(StoreForked):
                store.__enter__()
            assert "another process" in repr(store)
            assert isinstance(store, Store)
            # Ending them does nothing, and does not fail: `with` blocks and servers do it.
            store.close()
            reader.close()
            worker.stop()
            store.__exit__(None, None, None)
            asyncio.run(loop_store.close())

        assert forked(tell, child) == 0
        worker.run_once()
        worker.stop()
        assert [m.body for m in (await loop_store.pull("t", 0, 0)).messages] == []
        await loop_store.close()
        assert store.put("t", b"of the parent, too").offset == 1
        assert reader.get("t", 0, 0).body == b"of the parent"
        assert not store.verify().problems


def test_every_call_of_every_handle_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    in_child(_refused_everywhere, str(tmp_path / "store"))


def _assert_nothing_held(path: str) -> None:
    """No descriptor and no map of this process leads into a folder."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    maps = Path("/proc/self/maps").read_text().splitlines()
    held = [line for line in descriptors + maps if path in line]
    assert not held, held


def _holding_nothing(tell: Teller, path: str) -> None:
    with _store(path) as store, kvstore.open(path, read_only=True) as reader:
        reader.get("t", 0, 0)
        before = _folder(Path(path))
        assert forked(tell, lambda: _assert_nothing_held(path)) == 0
        assert _folder(Path(path)) == before
        store.put("t", b"more")
    with kvstore.open(path) as store:
        assert store.recovery.clean
        assert not store.verify().problems


def _folder(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_forked_child_holds_no_file_of_the_store_and_changes_none(tmp_path: Path) -> None:
    in_child(_holding_nothing, str(tmp_path / "store"))


def _holding_nothing_of_threads(tell: Teller, path: str) -> None:
    ended = threading.Event()
    with kvstore.open(path, kvstore.StoreConfig(segment_size=1 << 28)) as store:
        store.create_topic("t", queues=1)

        def put() -> None:
            while not ended.is_set():
                store.put_batch([kvstore.Message("t", b"x" * 100)] * 50)

        putting = threading.Thread(target=put)
        putting.start()
        try:
            for _ in range(20):
                assert forked(tell, lambda: _assert_nothing_held(f"{path}/commitlog/0")) == 0
        finally:
            ended.set()
            putting.join()


def test_a_child_that_is_forked_while_a_thread_puts_holds_no_segment(tmp_path: Path) -> None:
    """Frames of threads that only the parent has kept the segment's map, and so its file."""
    in_child(_holding_nothing_of_threads, str(tmp_path / "store"))


def _outlived(tell: Teller, path: str) -> None:
    store = _store(path)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)  # until the parent is done
        os._exit(0)
    os.close(reading)
    with pytest.raises(StoreLocked):
        kvstore.open(path)
    store.close()
    # The child lives, and holds nothing: another process may have the folder.
    with kvstore.open(path) as again:
        assert again.bounds("t", 0).next_offset == 1
    os.close(writing)
    os.waitpid(pid, 0)


def test_the_folder_is_free_when_the_parent_closes_it_though_a_child_lives(tmp_path: Path) -> None:
    in_child(_outlived, str(tmp_path / "store"))


def _locks_of(root: object) -> list[Any]:
    """Every lock that is reachable from an object, through kvmq's own objects."""
    kinds = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
    passed = (ModuleType, FunctionType, type, threading.Thread)
    seen, found, waiting = {id(root)}, [], [root]
    while waiting:
        for other in gc.get_referents(waiting.pop()):
            if isinstance(other, passed) or id(other) in seen:
                continue
            seen.add(id(other))
            if isinstance(other, kinds):
                found.append(other)
            elif isinstance(other, dict | list | tuple | set | MethodType) or type(
                other
            ).__module__.startswith(("kvstore", "tiering")):
                waiting.append(other)
    return found


def _forked_while_locked(tell: Teller, path: str) -> None:
    with _store(path) as store:
        locks = _locks_of(store)
        assert len(locks) > 20, "the walk finds the locks of all parts"
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            taken = [lock for lock in locks if lock.acquire(timeout=1)]
            held.set()
            over.wait()
            for lock in taken:
                lock.release()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()

        def child() -> None:
            _refuses(store)
            with pytest.raises(StoreForked, match="spawn"):
                kvstore.open(f"{path}.other", SMALL)

        code = forked(tell, child)
        over.set()
        thread.join()
        assert code == 0, "the child hung, or was not refused"
        store.put("t", b"more")


def test_a_child_forked_while_threads_hold_every_lock_is_refused_and_does_not_hang(
    tmp_path: Path,
) -> None:
    in_child(_forked_while_locked, str(tmp_path / "store"))


def _forked_while_a_module_is_locked(tell: Teller) -> None:
    lock = module_lock()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def child() -> None:
        assert lock.acquire(timeout=1), "nobody is there who could free it"

    code = forked(tell, child)
    assert lock.locked(), "the parent's own is held as before"
    over.set()
    thread.join()
    assert code == 0


def test_a_modules_lock_that_a_thread_held_at_the_fork_is_free_in_the_child() -> None:
    in_child(_forked_while_a_module_is_locked)


def _refused_traceless(tell: Teller, path: str) -> None:
    archive = Path(path).parent / "archive"
    with _store(path) as store:
        policy = tiering.Policy(hot_for=0, warm_for=3600, warm=str(archive))
        with tiering.Worker(store, policy) as worker:
            store.seal()
            worker.run_once()

    def child() -> None:
        new = Path(f"{path}.new")
        # Another has the lock meanwhile: it is not even tried.
        lock = LocalFiles().lock(Path(path) / "lock")
        for write in (
            lambda: kvstore.open(path),
            lambda: kvstore.rebuild(path),
            lambda: kvstore.open(new),
            lambda: tiering.restore(str(archive), new),
        ):
            with pytest.raises(StoreForked, match="is a fork"):
                write()
        lock.release()
        assert not new.exists()

    assert forked(tell, child) == 0


def test_what_a_forked_child_may_not_open_is_neither_made_nor_locked(tmp_path: Path) -> None:
    in_child(_refused_traceless, str(tmp_path / "store"))


def _opening_in_child(tell: Teller, path: str) -> None:
    with _store(path):

        def read_in_child() -> None:
            with kvstore.open(path, read_only=True) as reader:
                assert reader.get("t", 0, 0).body == b"of the parent"

        assert forked(tell, read_in_child) == 0

    def write_in_child() -> None:
        # RocksDB would wait for ever for threads that stayed in the parent.
        with pytest.raises(StoreForked, match="forkserver"):
            kvstore.open(path)
        with kvstore.open(path, read_only=True) as reader:
            assert reader.bounds("t", 0).next_offset == 1

    assert forked(tell, write_in_child) == 0


def test_a_forked_child_may_open_for_reading_but_is_refused_to_write(tmp_path: Path) -> None:
    in_child(_opening_in_child, str(tmp_path / "store"))


def _forked_first(tell: Teller, path: str) -> None:
    def child() -> None:
        with _store(path) as store:
            store.put("t", b"more")

    assert forked(tell, child) == 0


def test_a_process_that_forks_before_it_opens_a_store_may_open_it_in_the_child(
    tmp_path: Path,
) -> None:
    in_child(_forked_first, str(tmp_path / "store"))


def _archiving(tell: Teller, path: str) -> None:
    with _store(path) as store:
        policy = tiering.Policy(hot_for=0, warm_for=3600, warm="archive")
        with tiering.Worker(store, policy) as worker:
            store.seal()
            worker.run_once()
            assert worker.archives()
            pool = inside.work_context(worker).executor
            assert isinstance(pool, tiering.executor.pool.Pool)
            pool.run(lambda: None, os.getpid)
            process = inside_tiering.process_of(pool)

            def child() -> None:
                assert process.stdin is not None
                assert process.stdin.closed, "it would live as long as this child"

            assert forked(tell, child) == 0
            assert pool.run(lambda: None, os.getpid) == process.pid
            store.put("t", b"more")
            store.seal()
            worker.run_once()
            assert len(worker.archives()) == 2
            assert store.get("t", 0, 0).body == b"of the parent"


def test_the_process_that_makes_archives_goes_on_and_is_not_kept_by_a_child(tmp_path: Path) -> None:
    in_child(_archiving, str(tmp_path / "store"))


_PROGRAM: Final = """
import multiprocessing, os, signal, sys
import kvstore

signal.alarm(30)
with kvstore.open(sys.argv[1]) as store:
    store.create_topic("t")
    store.put("t", b"of the parent", queue=0)

    def work(queue):
        try:
            store.put("t", b"of the child")
        except kvstore.StoreError as e:
            queue.put(type(e).__name__)

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=work, args=(answers,))
    process.start()
    print(answers.get(), flush=True)
    process.join()
    assert process.exitcode == 0
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        sys.exit(7)  # through the end of `with`, and all that Python and RocksDB do then
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), store.put("t", b"more", queue=0).offset)
"""


def test_a_program_that_forks_with_a_store_open_ends_well_on_both_sides(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * FORK_PATIENCE,
    )
    assert (done.stdout.split(), done.stderr) == (["StoreForked", "7", "1"], "")
