"""An interrupt at any line leaves locks free, and a wait as it was."""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import signal
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore import Message, PutStatus, Store, StoreBusy
from kvstore.clock import SystemClock
from kvstore.engine.writer import Writer
from kvstore.log.commitlog import Piece
from kvstore.process.background import Background
from kvstore.process.locks import Signal
from tests.support import inside, inside_pops
from tests.support.stores import opened, settings
from tiering import Policy, Worker

PUT_AND_POP = (
    "engine/writer.py", "engine/repeats.py", "log/commitlog.py", "pop/pop.py", "pop/ack.py",
)  # fmt: skip
RUN = ("operations/worker.py",)
WAIT = ("log/flusher.py", "process/locks.py", "process/background.py", "/threading.py")
_ROWS = pa.record_batch({"body": [b"x"] * 3, "queue": [0, 0, 0]})
RELEASES = ("lock.release()", "table.lock.release()", "self._busy.release()")


class _Interrupt:
    """Interrupts at one of the lines that the watched modules run, or at the first one that is not
    among those `struck`; the release itself is left out: nothing in Python can guard that.
    """

    def __init__(
        self, at: int, modules: tuple[str, ...], struck: Collection[str] | None = None
    ) -> None:
        self._at = at
        self._modules = modules
        self._struck = struck
        self.passed: list[str] = []
        self.where = ""

    @property
    def lines(self) -> int:
        """How many were run."""
        return len(self.passed)

    def run(self, work: Callable[[], object]) -> None:
        """Do some work, and interrupt it: in a thread of its own, since Python takes an exception
        as handled for ever that a trace raised at the last line of a handler of another.
        """
        failed: list[BaseException] = []

        def traced() -> None:
            sys.settrace(self._trace)
            try:
                work()
            except KeyboardInterrupt as e:
                self.where = str(e)
            except BaseException as e:
                failed.append(e)
            finally:
                sys.settrace(None)

        thread = threading.Thread(target=traced)
        thread.start()
        thread.join()
        for error in failed:
            raise error

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self._modules):
            return None
        if event == "line":
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            # Between these lines Python lets no interrupt in.
            if not text.strip().startswith(("try:  # noqa: SIM105", *RELEASES)):
                place = f"{frame.f_code.co_filename}:{frame.f_lineno} {text}"
                self.passed.append(place)
                is_new = self._struck is not None and place not in self._struck
                if is_new or self.lines == self._at:
                    raise KeyboardInterrupt(place)
        return self._trace


def test_no_function_of_python_is_called_between_the_end_of_a_put_and_the_release() -> None:
    """A signal's handler runs when such a function begins, and what it raises skips the release."""
    lines = inspect.getsource(Writer).splitlines()
    ends = [n for n, line in enumerate(lines) if line.strip() == "finally:"]
    assert len(ends) == 1
    for at in ends:
        assert lines[at + 1].strip().startswith("try:")
        assert lines[at + 2].strip() in RELEASES


def _is_free(lock: threading.RLock) -> bool:
    """Whether another thread can have a lock."""
    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(timeout=1.0))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


def _work(store: Store) -> None:
    store.put("t", b"x", queue=0)
    store.put_batch([Message("once", b"x", dedup_id=one) for one in "aab"])
    store.put_batch([Message("t", b"x", queue=0)] * 3)
    store.put_columns("t", _ROWS)
    for message in store.pop("g", "t", 2):
        store.ack(message.receipt)


def test_an_interrupt_at_any_line_of_put_pop_and_ack_leaves_no_lock_held(tmp_path: Path) -> None:
    with opened(tmp_path / "s", settings()) as store:
        store.create_group("g")
        store.create_topic("once", dedup_window=60)
        _work(store)
        whole = _Interrupt(0, PUT_AND_POP)
        whole.run(lambda: _work(store))
        assert whole.lines > 100
        for at in range(1, whole.lines + 1):
            interrupt = _Interrupt(at, PUT_AND_POP)
            interrupt.run(lambda: _work(store))
            assert _is_free(inside.log(store).lock), interrupt.where
            for table in inside_pops.kept_tables(inside.tables(store)).values():
                assert _is_free(table.lock), interrupt.where


def test_an_interrupt_at_any_line_of_a_run_lets_the_next_run_begin(tmp_path: Path) -> None:
    with opened(tmp_path / "s", settings()) as store, Worker(store, Policy()) as worker:
        whole = _Interrupt(0, RUN)
        whole.run(worker.run_once)
        for at in range(1, whole.lines + 1):
            interrupt = _Interrupt(at, RUN)
            interrupt.run(worker.run_once)
            assert _is_free(inside.turn_of_runs(worker)), interrupt.where


def test_an_interrupt_at_any_line_of_a_wait_arrives_as_itself_and_the_store_goes_on(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "s", settings(flush="sync")) as store:
        struck, slept = list[str](), 0
        # A sync that is under way may serve a put before it sleeps, and how many threads wait makes
        # the lines others: so those that were not struck by their number are struck behind these.
        while slept < 2:
            interrupt = _Interrupt(len(struck) + 1, WAIT, struck if slept else None)
            interrupt.run(lambda: store.put("t", b"x", queue=0))
            assert all(thread.alive for thread in store.stats().threads), interrupt.where
            assert store.put("t", b"x", queue=0).status is PutStatus.FLUSHED, interrupt.where
            if interrupt.where:
                struck.append(interrupt.where)
            else:
                slept += any("waiter.sleep" in place for place in interrupt.passed)
        assert [where for where in struck if "while log.durable" in where]


def test_an_interrupt_while_a_store_closes_does_not_hide_a_thread_that_goes_on() -> None:
    turn, go_on = Signal(), Signal()

    def work() -> None:
        turn.set()
        go_on.wait()

    thread = Background("kvmq-test", work, SystemClock(), 0.0)
    thread.start()
    assert turn.wait(10)
    for at in itertools.count(1):
        interrupt = _Interrupt(at, WAIT)
        interrupt.run(thread.stop)
        assert thread.is_alive, interrupt.where
        if "_running.acquire(timeout" in interrupt.where:
            break  # the next line would come after the wait
    go_on.set()
    thread.stop()
    assert not thread.is_alive


@pytest.mark.parametrize("set_first", [False, True])
def test_an_interrupted_wait_loses_no_signal_of_another_waiter(set_first: bool) -> None:
    for at in itertools.count(1):
        awaited = Signal()
        if set_first:
            awaited.set()
        with ThreadPoolExecutor(1) as other:
            told = other.submit(awaited.wait, 10)
            interrupt = _Interrupt(at, ("process/locks.py",))
            interrupt.run(functools.partial(awaited.wait, 0.001))
            awaited.set()
            assert told.result(), interrupt.where
        assert inside.threads_at(awaited) == 0, interrupt.where
        if not interrupt.where:
            break
    assert at > 5


def test_a_put_in_the_handler_of_a_signal_is_refused_while_the_thread_is_in_a_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[type[BaseException]] = []
    with kvstore.open(tmp_path / "s", settings()) as store:
        store.create_topic("t", 1)
        append = inside.log(store).append

        def handle(*given: object) -> None:
            try:
                store.put("t", b"from the handler", queue=0)
            except StoreBusy as e:
                told.append(type(e))

        def interrupted(pieces: Sequence[Piece], count: int) -> None:
            signal.raise_signal(signal.SIGUSR1)
            append(pieces, count)

        before = signal.signal(signal.SIGUSR1, handle)
        monkeypatch.setattr(inside.log(store), "append", interrupted)
        try:
            store.put("t", b"x", queue=0)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert told == [StoreBusy]
        assert [m.body for m in store.pull("t", 0, 0).messages] == [b"x"]
