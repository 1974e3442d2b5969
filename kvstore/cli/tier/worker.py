"""A worker for a verb: `tier ...`, `erase ...`, and `spark ...`, where Spark's tasks take the place
of the worker's own process.

The idea: a verb's options and its body exist once; the worker is given to the body.

Invariant: a signal ends the step under way as if it had not begun; the steps before it stay done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import click

from kvstore.cli.terminal.opening import open_store, written_call
from kvstore.cli.terminal.options import Access, read_policy
from kvstore.cli.terminal.output import Output, Report, size_text
from kvstore.clock import Clock

if TYPE_CHECKING:
    from tiering.executor.pool import Executor
    from tiering.operations.worker import Worker
    from tiering.policy.policy import Policy
    from tiering.worker.runs import RunReport
    from tiering.worker.store_side import Progress

Who: TypeAlias = "Callable[[], AbstractContextManager[Executor | None]]"
"""The executor of a worker, for the time of a block; None: a process of the worker's own."""
Verb: TypeAlias = Callable[..., Any]
_WORKER: Final = "tiering.Worker(store, policy)"
"""The object that a program uses in the place of these verbs."""


def worker_call(call: str, *given: object, **named: object) -> str:
    """A worker's call as a program writes it; arguments that are None are left out."""
    return written_call(_WORKER, call, given, named)


def embedded() -> AbstractContextManager[Executor | None]:
    """The worker's own process."""
    return nullcontext()


class Working(NamedTuple):
    """A worker, an event that a signal sets, and the store's clock."""

    worker: Worker
    stopping: threading.Event
    clock: Clock


@contextmanager
def working(
    out: Output,
    who: Who,
    folder: Path,
    policy: Path | Policy,
    access: Access,
    config_file: Path | None,
    *,
    does: str,
    told: Callable[[Report], Progress] = lambda report: report,
) -> Iterator[Working]:
    """A worker for the store in a folder, for the time of the block. `told` chooses the progress
    that is shown; `does` is the call for the same in a program that has the store open
    (`worker_call`).
    """
    from tiering.operations.worker import Worker

    rules = read_policy(policy) if isinstance(policy, Path) else policy
    with (
        open_store(out, folder, config_file, access=access, does=does) as store,
        out.progress() as report,
        who() as executor,
        Worker(store, rules, progress=told(report), executor=executor) as worker,
        ending(worker) as stopping,
    ):
        yield Working(worker, stopping, store.config.clock)


@contextmanager
def ending(worker: Worker) -> Iterator[threading.Event]:
    """Within this block SIGTERM and SIGINT end the worker, and set the event; afterwards they are
    as before.
    """
    stopping = threading.Event()

    def end(number: int, frame: object) -> None:
        stopping.set()
        # Not called from here: the call waits for the run that this thread is in.
        threading.Thread(target=worker.stop, name="kvmq tiering's end").start()

    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def with_options(*options: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    """Options, in the order in which help lists them, as one decorator."""

    def decorated(verb: Verb) -> Verb:
        for option in reversed(options):
            verb = option(verb)
        return verb

    return decorated


def ended(out: Output, done: RunReport) -> None:
    """Print what a run did. Exit code 1 if something could not be done."""
    if out.json:
        out.document(done)
    else:
        show(out, done)
    if done.failed:
        click.get_current_context().exit(1)


def show(out: Output, done: RunReport) -> None:
    """Print what a run did, for people."""
    share = f" ({done.bytes / done.raw_bytes:.0%})" if done.raw_bytes else ""
    rows = [
        ("segments moved", f"{len(done.segments):,}"),
        ("archives made", f"{len(done.archives):,}"),
        ("messages", f"{done.messages:,}"),
        ("records", size_text(done.raw_bytes)),
        ("archives take", size_text(done.bytes) + share),
        ("archives gone cold", f"{len(done.shifted):,}"),
        ("archives replaced", f"{len(done.merged):,}"),
        ("archives expired", f"{len(done.expired):,}"),
        ("objects removed", f"{len(done.removed):,}"),
    ]
    out.table(("what", "value"), rows, right=("value",))
    if done.waits_for_hours:
        out.text("more is due, and waits for the policy's hours")
    if done.failed:
        out.table(("not done", "why"), list(done.failed.items()))
