"""The verb `work`: runs a command for every message a group gets.

The idea: each of `--parallel` coroutines pops a message, starts the command with the body on its
standard input, and extends the lock as long as the command runs. Exit code 0 acks the message, any
other gives it back. The command needs no store, which this process has for itself.

Invariants: a message is acked only after its command ended with 0; a command whose message another
worker has got is killed; the first signal lets running commands end, the second one kills them and
gives their messages back.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import msgspec

import kvstore.aio
from kvstore import Popped, ReceiptExpired, StoreError
from kvstore.cli.message.pop_verbs import filter_options, filter_text, pop_text, wanted_filter
from kvstore.cli.terminal.opening import (
    Seconds,
    config_option,
    folder_argument,
    namespace_option,
    read_config,
    require_store,
    telling,
    topic_argument,
)
from kvstore.cli.terminal.options import Access, access_options
from kvstore.cli.terminal.output import Output, Report, output_option
from kvstore.clock import SystemClock
from kvstore.opening.store_folder import served_url
from kvstore.pop.popped import INVISIBLE_MAX

_WAIT: Final = 3600.0
"""Seconds of one pop; then comes the next."""
_EXTENSIONS: Final = 3
"""A lock is extended so many times in its time."""
_LOOK: Final = 0.1
"""Seconds between two checks for messages that other workers gave back."""
_STDERR: Final = 2
_INTERRUPTED: Final = 130
_OWN: Final = "KVMQ_"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")


class WorkTally(msgspec.Struct):
    """How messages ended. `failed`: the command ended with another code than 0; of these, `dead`
    had their last attempt. `lost`: handed out again while the command ran. `given_back`: its
    command was killed by a signal to the worker.
    """

    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    given_back: int = 0

    @property
    def runs(self) -> int:
        """How often the command ran."""
        return self.done + self.failed + self.lost + self.given_back


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker."""

    group: str
    topic: str
    command: tuple[str, ...]
    invisible: float
    retry_in: float | None
    parallel: int
    count: int | None
    until_empty: bool
    filter: Any
    queue: int | None
    quiet: bool


@click.command()
@folder_argument
@click.argument("group", metavar="GROUP")
@topic_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED,
                metavar="-- COMMAND [ARGS]...")  # fmt: skip
@click.option("--parallel", type=click.IntRange(min=1), default=1, show_default=True,
              help="Commands that run at a time.")  # fmt: skip
@click.option("--invisible", type=Seconds(0.1, INVISIBLE_MAX), default=30.0, show_default=True,
              metavar="SECONDS", help="A lock's time; it is extended at need.")  # fmt: skip
@click.option("--retry-in", type=Seconds(0, INVISIBLE_MAX), metavar="SECONDS",
              help="When a failed message comes again; default: the group's backoff.")  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), help="End after so many runs.")
@click.option("--until-empty", is_flag=True, help="End when nothing can be had any more.")
@filter_options
@click.option("--queue", type=click.IntRange(min=0), help="Only messages of this queue.")
@namespace_option
@access_options
@config_option
@output_option
def work(
    out: Output, folder: Path, group: str, topic: str, namespace: str | None,
    access: Access, config_file: Path | None, tags: str | None, sql: str | None, **given: Any,
) -> None:  # fmt: skip
    """Run COMMAND for every message of TOPIC that GROUP gets, until a signal ends it.

    The message's body is on the command's standard input, the rest in its environment: KVMQ_TOPIC,
    KVMQ_QUEUE, KVMQ_OFFSET, KVMQ_ATTEMPT, KVMQ_GROUP, KVMQ_MESSAGE_ID, KVMQ_TAG, KVMQ_KEYS,
    KVMQ_MESSAGE_GROUP, KVMQ_BORN_AT, KVMQ_STORED_AT, and KVMQ_PROPERTY_ with each property's name.
    Exit code 0 acks the message, any other gives it back.
    """
    require_store(folder)
    config = read_config(config_file, access)
    if shutil.which(given["command"][0]) is None:
        raise click.UsageError(f"there is no command {given['command'][0]!r}")
    plan = Plan(group=group, topic=topic, filter=wanted_filter(tags, sql), quiet=out.json, **given)
    clock = SystemClock()

    async def run(report: Report) -> tuple[_Worker, float]:
        url = served_url(folder)
        opening = (
            kvstore.aio.connect(url) if url else kvstore.aio.open(folder, config, progress=report)
        )
        async with opening as store:
            calls = store if namespace is None else store.namespace(namespace)
            worker = _Worker(calls, plan, report)
            begin = clock.monotonic()
            await worker.run()
            return worker, clock.monotonic() - begin

    does = pop_text(
        group, topic, namespace=namespace, invisible=given["invisible"],
        filter=filter_text(tags, sql), queue=given["queue"],
    )  # fmt: skip
    does += " and store.ack(receipt)"
    with out.progress() as report, telling(does):
        worker, seconds = asyncio.run(run(report))
    _show(out, worker.tally, seconds)
    if worker.killed.done():
        click.get_current_context().exit(_INTERRUPTED)


class _Worker:
    """The running commands, and the tally so far; made inside an event loop."""

    def __init__(
        self,
        store: kvstore.aio.Store | kvstore.aio.ServedStore | kvstore.aio.Namespace,
        plan: Plan,
        report: Report,
    ) -> None:
        self.tally = WorkTally()
        self.killed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the running commands are to be killed."""
        self._store = store
        self._plan = plan
        self._report = report
        self._stopping = False
        self._begun = 0
        self._running = 0
        self._pops: set[asyncio.Future[list[Popped]]] = set()
        self._looking = asyncio.Lock()
        self._error: BaseException | None = None
        self._attempts_max = 0

    async def run(self) -> None:
        """Works until it is over."""
        self._attempts_max = (await self._store.group(self._plan.group)).max_attempts
        await self._store.topic(self._plan.topic)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.signalled)
        try:
            await asyncio.gather(*(self._guarded(self._work) for _ in range(self._plan.parallel)))
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        if self._error is not None:
            raise self._error

    def signalled(self) -> None:
        """The first time, pop no more messages; the second time, kill the running commands."""
        if self._stopping and not self.killed.done():
            self.killed.set_result(None)
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for pop in self._pops:
            pop.cancel()

    async def _guarded(self, part: Callable[[], Awaitable[None]]) -> None:
        """A coroutine that fails ends all others after their current message; the first error
        counts.
        """
        try:
            await part()
        except (StoreError, OSError) as e:
            self._error = self._error or e
            self._stop()

    async def _work(self) -> None:
        while not self._stopping and self._begun != self._plan.count:
            # Counted before the pop: of two coroutines that look for the last message only one may
            # take it.
            self._begun += 1
            popped = await self._next()
            if popped is None:
                self._begun -= 1
                continue
            self._running += 1
            try:
                await self._handle(popped)
            finally:
                self._running -= 1
            self._report("working", self.tally.runs, self._plan.count or 0)

    # --- getting messages ---

    async def _next(self) -> Popped | None:
        """The next message; None if the caller should check again whether to go on."""
        if not self._plan.until_empty:
            return await self._pop(_WAIT)
        async with self._looking:
            return None if self._stopping else await self._last()

    async def _last(self) -> Popped | None:
        """A message, or the end if there is none. An empty pop may have skipped messages that a
        filter refuses, or buried messages that were tried too often: the work is over when an empty
        pop changes nothing. One coroutine looks at a time, so nothing begins meanwhile.
        """
        popped = await self._pop(0)
        if popped is not None or self._stopping:
            return popped
        if self._running:
            await asyncio.sleep(_LOOK)  # running messages may come back
            return None
        before = await self._state()
        popped = await self._pop(0)
        if popped is None and await self._state() == before:
            self._stop()
        return popped

    async def _state(self) -> tuple[int, int, int]:
        (stats,) = await self._store.group_stats(self._plan.group, self._plan.topic)
        return stats.taken, stats.in_flight, stats.dead_letters

    async def _pop(self, wait: float) -> Popped | None:
        plan = self._plan
        pop = asyncio.ensure_future(
            self._store.pop(
                plan.group,
                plan.topic,
                1,
                plan.invisible,
                wait,
                filter=plan.filter,
                queue=plan.queue,
            )
        )
        self._pops.add(pop)
        try:
            found = await pop
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            return None
        finally:
            self._pops.discard(pop)
        return found[0] if found else None

    # --- running the command ---

    async def _handle(self, popped: Popped) -> None:
        """Runs the command for a message, and settles it."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._plan.command,
                stdin=subprocess.PIPE,
                # Standard output is for JSON then.
                stdout=_STDERR if self._plan.quiet else None,
                env=environment(self._plan.group, popped),
                # A group of its own: a terminal's ctrl-C is for the worker.
                start_new_session=True,
            )
        except OSError:
            await self._store.change_invisible(popped.receipt, 0)
            raise
        talk = asyncio.ensure_future(process.communicate(popped.message.body))
        try:
            receipt = await self._attend(popped.receipt, talk)
        finally:
            if not talk.done():
                _kill(process.pid)
            await talk
        try:
            await self._settle(popped, receipt, process.returncode)
        except ReceiptExpired:
            self.tally.lost += 1
            self._say(popped, "was handed out again before its command ended")

    async def _attend(self, receipt: str, talk: asyncio.Future[Any]) -> str | None:
        """Extends the lock while the command runs; returns the receipt that is valid when the
        command has ended or is to be killed, None if none is valid any more.
        """
        third = self._plan.invisible / _EXTENSIONS
        while True:
            await asyncio.wait(
                {talk, self.killed}, timeout=third, return_when=asyncio.FIRST_COMPLETED
            )
            if talk.done() or self.killed.done():
                return receipt
            try:
                receipt = await self._store.change_invisible(receipt, self._plan.invisible)
            except ReceiptExpired:
                return None

    async def _settle(self, popped: Popped, receipt: str | None, code: int | None) -> None:
        if receipt is None:
            raise ReceiptExpired("its lock was lost while its command ran")
        if code == 0:
            await self._store.ack(receipt)
            self.tally.done += 1
        elif self.killed.done():
            await self._store.change_invisible(receipt, 0)
            self.tally.given_back += 1
        else:
            last = popped.attempt >= self._attempts_max
            # A message on its way to the dead letters need not wait.
            wait = 0 if last else self._plan.retry_in
            await self._store.change_invisible(receipt, wait, gives_back=True)
            self.tally.failed += 1
            self.tally.dead += last
            self._say(popped, f"failed with {_code_text(code)}{', for the last time' * last}")

    def _say(self, popped: Popped, what: str) -> None:
        message = popped.message
        click.echo(
            f"offset {message.offset} of queue {message.queue} of {message.topic}, attempt "
            f"{popped.attempt}: {what}",
            err=True,
        )


def _kill(pid: int) -> None:
    """Ends a command and its child processes."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _code_text(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def environment(
    group: str, popped: Popped, base: Mapping[bytes, bytes] = os.environb
) -> dict[bytes, bytes]:
    """The environment of a command: this process's, and the fields of the message."""
    message = popped.message
    fields: dict[str, object] = {
        "GROUP": group,
        "TOPIC": message.topic,
        "QUEUE": message.queue,
        "OFFSET": message.offset,
        "ATTEMPT": popped.attempt,
        "MESSAGE_ID": message.message_id,
        "BORN_AT": message.born_at,
        "STORED_AT": message.stored_at,
        "EXPIRES_AT": message.expires_at,
        "TAG": message.tag,
        "KEYS": " ".join(message.keys) or None,
        "MESSAGE_GROUP": message.message_group,
    }
    for name, value in message.user_properties.items():
        fields["PROPERTY_" + _NOT_IN_NAMES.sub("_", name)] = value
    found = {name: value for name, value in base.items() if not name.startswith(_OWN.encode())}
    for name, content in fields.items():
        if content is not None:
            # No variable can have a NUL; its value would end there, so it is left out.
            text = str(content).replace("\0", "")
            found[(_OWN + name).encode()] = text.encode("utf-8", "surrogatepass")
    return found


def _show(out: Output, tally: WorkTally, seconds: float) -> None:
    rate = tally.runs / seconds if seconds else 0.0
    if out.json:
        found = msgspec.to_builtins(tally)
        out.document({**found, "runs": tally.runs, "seconds": seconds, "per_second": rate})
        return
    columns = ("done", "failed", "dead", "lost", "given back", "seconds", "runs/s")
    row = (tally.done, tally.failed, tally.dead, tally.lost, tally.given_back, seconds, rate)
    out.table(columns, [row])
