"""The `kvmq` command: its verbs, and how an error leaves the process.

The idea: a verb's module is imported when the verb runs, so `kvmq --help` needs none of them; their
one-line helps stand here. Verbs call the public API and print through `Output`. None catches a
`StoreError`; they all end here, where the calls that an error advises become verbs. The rooms:
`admin`, `message`, `tier`, `spark` and `trial` have the verbs, `terminal` opens stores and shows
results. Not in here: any work on messages, which is the public API's. Begin with this module, then
`message.put_verb`. May import every room of both packages.

Invariants: listing the verbs, with a line on each, imports none of them. Results go to stdout and
everything else to stderr. Exit codes: 0 done, 1 an error or a check that failed, 2 wrong usage, 130
interrupted, 141 the reader of a pipe went away. An error of the store, of the file system or of
usage is one readable line, with `--json` one JSON object; a traceback is a bug.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn

import click

from kvstore.errors import StoreError

Verbs = Mapping[str, tuple[str, str]]
"""Verb, the module that has it (by its name, `_` for `-`; `import_` for `import`), its help."""


class LazyGroup(click.Group):
    """A group of the verbs in `verbs`."""

    verbs: ClassVar[Verbs] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`: in the order of the table, not of the alphabet."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group`."""
        entry = self.verbs.get(cmd_name)
        if entry is None:
            return None
        attribute = {"import": "import_"}.get(cmd_name, cmd_name.replace("-", "_"))
        command: click.Command = getattr(importlib.import_module(entry[0]), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: Any) -> None:
        """See `click.Group`: without importing the verbs."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, entry[1]) for name, entry in self.verbs.items()])


VERB_OF_CALL: Final = {
    "create_topic": "kvmq topic create",
    "alter_topic": "kvmq topic alter",
    "create_group": "kvmq group create",
    "alter_group": "kvmq group alter",
    "reset_offset": "kvmq offset reset",
    "namespaces": "kvmq namespace list",
    "schedules": "kvmq schedule list",
}
"""Calls that errors advise, and the verb that does it."""

PHRASES: Final = (
    (", or open with auto_create_topics=True", ""),
    ("exist_ok=True", "--exist-ok"),
    ("takes_delays=False", "--takes-no-delays"),
    ("StoreConfig(any_time=True)", "any_time = true in the file of --config"),
    ("call it of store.shard(name), or name that", "name that"),
    ("or open it here with read_only=True", "or use a verb that only reads"),
    (
        "open it without read_only=True to create or adopt one",
        "`kvmq topic create` and `kvmq put --create` make one",
    ),
)
"""Advice that is no call's name, and the verb for it."""

_CALL: Final = re.compile(
    rf"(with|use) ({'|'.join(VERB_OF_CALL)})(?=$|[ ,;.])|`({'|'.join(VERB_OF_CALL)})`"
)
_VIEW: Final = re.compile(r"use store\.namespace\('([^']*)'\)")


def in_verbs(text: str) -> str:
    """An error's text with the verbs of the command line in the place of calls."""
    for phrase, instead in PHRASES:
        text = text.replace(phrase, instead)
    text = _VIEW.sub(r"use --namespace \1", text)
    return _CALL.sub(_verb, text)


def _verb(found: re.Match[str]) -> str:
    word, call, quoted = found.groups()
    return f"{word} `{VERB_OF_CALL[call]}`" if call else f"`{VERB_OF_CALL[quoted]}`"


_VERBS: Final[dict[str, tuple[str, str]]] = {
    "demo": (
        "kvstore.cli.trial.demo",
        "The main job on real input: load, read, kill, recover, check.",
    ),
    "topic": ("kvstore.cli.admin.topic_verbs", "Create, list, show, alter or delete topics."),
    "put": (
        "kvstore.cli.message.put_verb",
        "Put messages: one a line, from JSON lines, or one given body.",
    ),
    "get": ("kvstore.cli.message.read_verbs", "Show one message: by queue offset, position or id."),
    "pull": ("kvstore.cli.message.read_verbs", "Read a queue from an offset on."),
    "pop": ("kvstore.cli.message.pop_verbs", "Take messages for a group, each under a lock."),
    "ack": ("kvstore.cli.message.pop_verbs", "Say that messages are done, by their receipts."),
    "work": ("kvstore.cli.message.work", "Run a command for every message a group gets."),
    "query": (
        "kvstore.cli.message.read_verbs",
        "Find the messages that carry a key, newest first.",
    ),
    "find": ("kvstore.cli.message.read_verbs", "Show the message with an id."),
    "timer": (
        "kvstore.cli.message.timer_verbs",
        "Messages that wait for their time: list, show, cancel, change.",
    ),
    "tx": (
        "kvstore.cli.message.tx_verbs",
        "Prepared messages of transactions: list, show, commit, roll back.",
    ),
    "offset-at": (
        "kvstore.cli.message.read_verbs",
        "Say which offset was the first at or after a time.",
    ),
    "group": (
        "kvstore.cli.admin.group_verbs",
        "Create, list, show, alter or delete consumer groups.",
    ),
    "offset": (
        "kvstore.cli.admin.group_verbs",
        "A group's offsets: show, commit, reset, history, lag.",
    ),
    "namespace": ("kvstore.cli.admin.topic_verbs", "Create, list, show or delete namespaces."),
    "schedule": (
        "kvstore.cli.admin.schedule_verbs",
        "Messages at set times: create, list, pause, resume or delete schedules.",
    ),
    "serve": (
        "kvstore.cli.admin.serve_verb",
        "Serve a store to other processes, until a signal.",
    ),
    "token": (
        "kvstore.cli.admin.token_verb",
        "A token for a client of a served store.",
    ),
    "top": ("kvstore.cli.admin.top", "A live screen of rates, lag, and what is in flight."),
    "stats": (
        "kvstore.cli.admin.stores",
        "The contents of the store, and its figures since the opening.",
    ),
    "tier": (
        "kvstore.cli.tier",
        "Archives of old segments: made by a policy, listed, checked.",
    ),
    "erase": (
        "kvstore.cli.tier.erasing",
        "Erase messages from log and archives, and prove it.",
    ),
    "restore": ("kvstore.cli.admin.stores", "Make a store from archives alone."),
    "spark": ("kvstore.cli.spark", "Work on archives at any size, as jobs of Apache Spark."),
    "verify": (
        "kvstore.cli.admin.stores",
        "Check every record, and that the index agrees with the log.",
    ),
    "rebuild": ("kvstore.cli.admin.stores", "Drop the index and build it anew from the log."),
    "dump": (
        "kvstore.cli.message.dump",
        "Print records straight from files, also those RocketMQ wrote.",
    ),
    "import": ("kvstore.cli.admin.stores", "Adopt a store that RocketMQ wrote."),
    "export": ("kvstore.cli.admin.stores", "Make a folder for RocketMQ's broker of a store."),
    "bench": ("kvstore.cli.trial.measure", "Measure put, pull, get and query on this machine."),
}

_USAGE: Final = 2
_INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141


class _KvmqVerbs(LazyGroup):
    """The group of verbs; it turns errors of a verb into a line and an exit code."""

    verbs = _VERBS

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`; a pipe that broke is told apart before click makes it exit code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as e:
            raise click.exceptions.Exit(_pipe_closed()) from e

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Runs a command line and leaves the process (`SystemExit`) with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        extra.setdefault("prog_name", "kvmq")
        try:
            code = super().main(words, *rest, **extra)
            sys.stdout.flush()
        except BaseException as e:
            code = _failed(e, "--json" in words)
        sys.exit(code if isinstance(code, int) else 0)


def _pipe_closed() -> int:
    # Bytes that are still buffered must not fail again when the interpreter flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _PIPE_CLOSED


def _failed(error: BaseException, as_json: bool) -> int:
    """Prints the error and returns the exit code; an exception that is our own bug goes on up."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return _INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return _pipe_closed()
    if isinstance(error, click.UsageError) and not as_json:
        error.show()
        return _USAGE
    if not isinstance(error, click.ClickException | StoreError | OSError):
        raise error
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    text = "; ".join([in_verbs(text), *getattr(error, "__notes__", ())])
    if as_json:
        import json

        click.echo(json.dumps({"error": type(error).__name__, "message": text}), err=True)
    else:
        click.echo(f"kvmq: {text}", err=True)
    return _USAGE if isinstance(error, click.UsageError) else 1


def _print_version(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if not is_given or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("kvmq")
    except PackageNotFoundError:
        found = "from a folder that was not installed"
    click.echo(f"kvmq {found}")
    ctx.exit()


@click.group(cls=_KvmqVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
def kvmq() -> None:
    """A message store in a folder: one commit log that RocketMQ can read, indexed by RocksDB.

    Every verb has --help, and --json for machines.
    """


def main() -> NoReturn:
    """Runs the command line of this process."""
    kvmq.main()
