"""The verb `work`: runs a command for every message a group gets.

The idea: a consumer (`kvstore.consume`) whose handler starts the command with the body on its
standard input. Exit code 0 acks the message, any other gives it back, with the code as the reason.
The command needs no store, which this process has for itself.

Invariants: a command whose handler is cancelled (its lock was lost, or a second signal came) is
killed with all its child processes; the first signal lets running commands end.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import msgspec

import kvstore.aio
from kvstore import Popped
from kvstore.cli.message.pop_verbs import filter_options, filter_text, wanted_filter
from kvstore.cli.terminal.opening import (
    Seconds,
    Word,
    call_text,
    config_option,
    environment_target,
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
from kvstore.consume.async_consumer import AsyncConsumer
from kvstore.consume.hand import Reported
from kvstore.opening.store_folder import served_url
from kvstore.pop.popped import INVISIBLE_DEFAULT, INVISIBLE_MAX
from kvstore.process.signals import on_signal

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


class CommandFailed(Reported):
    """A command ended with another code than 0, or could not be started."""


@click.command()
@folder_argument
@click.argument("group", metavar="GROUP")
@topic_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED,
                metavar="-- COMMAND [ARGS]...")  # fmt: skip
@click.option("--parallel", type=click.IntRange(min=1), default=1, show_default=True,
              help="Commands that run at a time.")  # fmt: skip
@click.option("--invisible", type=Seconds(0.1, INVISIBLE_MAX), default=INVISIBLE_DEFAULT,
              show_default=True, metavar="SECONDS",
              help="A lock's time; it is extended at need.")  # fmt: skip
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
    Exit code 0 acks the message, any other gives it back. TOPIC may be a pattern, as 'orders-*'.
    """
    require_store(folder)
    config = read_config(config_file, access)
    if shutil.which(given["command"][0]) is None:
        raise click.UsageError(f"there is no command {given['command'][0]!r}")
    command, quiet, parallel = given["command"], out.json, given["parallel"]
    clock = SystemClock()

    async def run(report: Report) -> tuple[_Worker, float]:
        url = served_url(folder)
        opening = (
            kvstore.aio.connect(url, **environment_target(url))
            if url
            else kvstore.aio.open(folder, config, progress=report)
        )
        async with opening as store:
            calls = store if namespace is None else store.namespace(namespace)
            attempts_max = (await calls.group(group)).max_attempts
            worker = _Worker(group, command, attempts_max, quiet=quiet, report=report)
            begin = clock.monotonic()
            await worker.run(
                calls.consume(
                    group, topic, worker.handle, concurrency=parallel,
                    invisible_for=given["invisible"], retry_in=given["retry_in"],
                    filter=wanted_filter(tags, sql), queue=given["queue"], count=given["count"],
                    until_empty=given["until_empty"],
                )
            )  # fmt: skip
            return worker, clock.monotonic() - begin

    seconds = None if given["invisible"] == INVISIBLE_DEFAULT else given["invisible"]
    does = call_text(
        "consume", group, topic, Word("run_the_command"),
        concurrency=None if parallel == 1 else parallel, invisible_for=seconds,
        retry_in=given["retry_in"], filter=filter_text(tags, sql), queue=given["queue"],
        namespace=namespace,
    )  # fmt: skip
    with out.progress() as report, telling(does):
        worker, seconds = asyncio.run(run(report))
    _show(out, worker.tally, seconds)
    if worker.is_killed:
        click.get_current_context().exit(_INTERRUPTED)


class _Worker:
    """The handler that runs commands, and the tally so far."""

    def __init__(
        self, group: str, command: tuple[str, ...], attempts_max: int, *, quiet: bool,
        report: Report,
    ) -> None:  # fmt: skip
        self.tally = WorkTally()
        self._signals = 0
        self._group = group
        self._command = command
        self._attempts_max = attempts_max
        self._quiet = quiet
        self._report = report
        self._stops: set[asyncio.Task[bool]] = set()
        self._consumer: AsyncConsumer | None = None
        self._error: OSError | None = None

    @property
    def is_killed(self) -> bool:
        """Whether a second signal came."""
        return self._signals > 1

    async def run(self, consumer: AsyncConsumer) -> None:
        """Works until it is over."""
        self._consumer = consumer
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            on_signal(loop, number, self.signalled)
        try:
            async with consumer:
                await consumer.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            stats = consumer.stats()
            self.tally.done, self.tally.lost = stats.handled, stats.lost
            self.tally.failed, self.tally.given_back = stats.failed, stats.cancelled
        if self._error is not None:
            raise self._error

    def signalled(self) -> None:
        """The first time, pop no more messages; the second time, kill the running commands."""
        self._signals += 1
        self._stop(0.0 if self.is_killed else None)

    def _stop(self, within: float | None) -> None:
        assert self._consumer is not None, "there are signals only while it runs"
        self._stops.add(asyncio.ensure_future(self._consumer.stop(within)))

    # --- running the command ---

    async def handle(self, popped: Popped) -> None:
        """Runs the command for a message; `CommandFailed`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=subprocess.PIPE,
                # Standard output is for JSON then.
                stdout=_STDERR if self._quiet else None,
                env=environment(self._group, popped),
                # A group of its own: a terminal's ctrl-C is for the worker.
                start_new_session=True,
            )
        except OSError as e:
            self._error = e
            self._stop(None)
            raise CommandFailed(f"the command can't be started: {e}") from None
        talk = asyncio.ensure_future(process.communicate(popped.message.body))
        try:
            await asyncio.shield(talk)
        except asyncio.CancelledError:
            _kill(process.pid)
            # Another cancellation must not leave a process behind for which nobody waits.
            while process.returncode is None:
                with suppress(asyncio.CancelledError):
                    await process.wait()
            if not self.is_killed:
                self._say(popped, "was handed out again before its command ended")
            raise
        finally:
            self._tell_progress()
        self._check(popped, process.returncode)

    def _tell_progress(self) -> None:
        assert self._consumer is not None, "it runs"
        stats, count = self._consumer.stats(), self._consumer.plan.count
        self._report("working", stats.handled + stats.failed + stats.lost, count or 0)

    def _check(self, popped: Popped, code: int | None) -> None:
        if code != 0:
            last = popped.attempt >= self._attempts_max
            self.tally.dead += last
            text = f"failed with {_code_text(code)}"
            self._say(popped, f"{text}{', for the last time' * last}")
            raise CommandFailed(text)

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
