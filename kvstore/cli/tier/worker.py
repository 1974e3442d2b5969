"""A worker for a verb: `tier ...`, `erase ...`, and `spark ...`, where Spark's tasks take the place
of the worker's own process.

The idea: a verb exists once. Its `Job` has the options that all of these verbs share, and the
executor, which the verbs of `spark` put in.

Invariant: a signal ends the step under way as if it had not begun; the steps before it stay done.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kvstore import ServedStore
from kvstore.cli.terminal.opening import (
    config_option,
    connect_if_served,
    open_store,
    written_call,
)
from kvstore.cli.terminal.options import Access, access_options, read_policy
from kvstore.cli.terminal.output import Output, Report, output_option, size_text
from kvstore.clock import Clock, SystemClock

if TYPE_CHECKING:
    from tiering.executor.pool import Executor
    from tiering.operations.served_worker import ServedWorker
    from tiering.operations.worker import Worker
    from tiering.policy.policy import Policy
    from tiering.worker.runs import RunReport
    from tiering.worker.store_protocols import Progress

MakesExecutor: TypeAlias = "Callable[[], AbstractContextManager[Executor | None]]"
"""The executor of a worker, for the time of a block; None: a process of the worker's own."""


def worker_call(call: str, *given: object, **named: object) -> str:
    """A worker's call as a program writes it; arguments that are None are left out."""
    return written_call("tiering.Worker(store, policy)", call, given, named)


class RunningWorker(NamedTuple):
    """A worker, an event that a signal sets, and the store's clock."""

    worker: Worker | ServedWorker
    stopping: threading.Event
    clock: Clock


class Job(NamedTuple):
    """The options that verbs with a worker share, and the maker of the worker's executor."""

    out: Output
    folder: Path
    access: Access
    config_file: Path | None
    policy_file: Path | None
    executor: MakesExecutor

    @contextmanager
    def working(
        self,
        does: str,
        *,
        policy: Policy | None = None,
        shown: Callable[[Report], Progress] = lambda report: report,
    ) -> Iterator[RunningWorker]:
        """A worker for the store, for the time of the block, with the policy of `policy_file` or
        the given one; of a store that is served the server's, unless the executor is Spark.
        `shown` chooses the progress that is shown; `does` is the call for the same in a program
        that has the store open (`worker_call`).
        """
        from tiering.operations.worker import Worker

        if policy is None:
            assert self.policy_file is not None, "the verb asks for one"
            policy = read_policy(self.policy_file)
        served = self.served()
        if served is not None:
            with served, self._served(served, policy, shown) as found:
                yield found
            return
        opened = open_store(
            self.out, self.folder, self.config_file, access=self.access, does=does, own=True
        )
        with (
            opened as store,
            self.out.progress() as report,
            self.executor() as executor,
            Worker(store, policy, progress=shown(report), executor=executor) as worker,
        ):
            stopping = threading.Event()

            def end() -> None:
                stopping.set()
                # Not called from here: the call waits for the run that this thread is in.
                threading.Thread(target=worker.stop, name="kvmq tiering's end").start()

            with on_signal(end):
                yield RunningWorker(worker, stopping, store.config.clock)

    def served(self) -> ServedStore | None:
        """The store by its server, which does the work then; None if it has none, and for Spark,
        whose tasks need the store.
        """
        return connect_if_served(self.folder) if self.executor is nullcontext else None

    @contextmanager
    def _served(
        self, store: ServedStore, policy: Policy, shown: Callable[[Report], Progress]
    ) -> Iterator[RunningWorker]:
        from tiering.operations.served_worker import ServedWorker

        stopping = threading.Event()
        # A policy that moves nothing stands for that of the server.
        own = policy if policy.moves else None
        with self.out.progress() as report:
            worker = ServedWorker(store, own, progress=shown(report))

            def end() -> None:
                stopping.set()
                worker.stop()

            with on_signal(end):
                yield RunningWorker(worker, stopping, SystemClock())


def job_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a verb, as the argument `job`, the options `--keys`, `--place-option`, `--config` and
    `--json`, with the arguments `folder` and `policy_file` (if it takes one), which it declares.
    """

    @access_options
    @config_option
    @output_option
    @functools.wraps(verb)
    def with_job(
        out: Output, *, folder: Path, access: Access, config_file: Path | None,
        policy_file: Path | None = None, executor: MakesExecutor = nullcontext, **given: Any,
    ) -> Any:  # fmt: skip
        return verb(Job(out, folder, access, config_file, policy_file, executor), **given)

    return with_job


@contextmanager
def on_signal(call: Callable[[], None], *, once: bool = False) -> Iterator[None]:
    """Within this block SIGTERM and SIGINT call `call`, with `once` only the first of them;
    afterwards they are as before. Without effect in another than the main thread, which alone gets
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(_number: int, _frame: object) -> None:
        if once:
            restore()
        call()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


def show_run(out: Output, done: RunReport, *, line: bool = False) -> None:
    """Prints what a run did; with `line` as one of a stream."""
    if out.json:
        (out.line if line else out.document)(done)
        return
    share = f" ({done.bytes / done.raw_bytes:.0%})" if done.raw_bytes else ""
    rows = [
        ("segments moved", f"{len(done.segments):,}"),
        ("archives made", f"{len(done.archives):,}"),
        ("messages", f"{done.messages:,}"),
        ("records", size_text(done.raw_bytes)),
        ("archives take", size_text(done.bytes) + share),
        ("archives gone cold", f"{len(done.relocated):,}"),
        ("archives replaced", f"{len(done.merged):,}"),
        ("archives expired", f"{len(done.expired):,}"),
        ("objects removed", f"{len(done.removed):,}"),
    ]
    out.table(("what", "value"), rows, right=("value",))
    if done.waits_for_hours:
        out.text("more is due, and waits for the policy's hours")
    if done.failed:
        out.table(("not done", "why"), list(done.failed.items()))
