"""The verb `put`: messages from a command line, from lines, from JSON lines.

The idea: some lines at once become columns, and are put as such; lines of different topics are put
one topic after the other, in their order. A line at fault ends the run with its number. All lines
before it are put, and the error says how many.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from kvstore import ColumnsPut, Message, PutResult
from kvstore.cli.terminal.message_text import (
    QUEUE_MAX,
    MessageLine,
    columns_of,
    line_from_json,
    name_line,
    name_of,
    row_at_fault,
)
from kvstore.cli.terminal.opening import (
    Instant,
    Seconds,
    StoreOrNamespace,
    VerbStore,
    Word,
    config_option,
    delay_options,
    folder_argument,
    store_options,
    topic_argument,
)
from kvstore.cli.terminal.options import LocalFile, Setting
from kvstore.cli.terminal.output import Output, size_text
from kvstore.clock import SystemClock, whole_ms
from kvstore.core.names import DELAY_LEVELS_MS
from kvstore.errors import CallerError, MessageIllegal, StoreError

_TTL_MAX: Final = 100 * 366 * 24 * 3600.0
_NumberedLine = tuple[int, MessageLine]
_DELAYS: Final = ("deliver_at", "delay", "delay_level")


@click.command()
@folder_argument
@topic_argument
@click.argument("source", metavar="[FILE|-]", type=LocalFile("rb"), required=False)
@click.option("--body", help="Put this one message instead of reading lines.")
@click.option(
    "--jsonl", is_flag=True, help="Each line is a JSON object: body and, if wanted, others."
)
@click.option("--tag", help="One word for filters.")
@click.option("--key", "keys", multiple=True, help="What `query` finds; may be repeated.")
@click.option("--property", "properties", type=Setting(), multiple=True)
@click.option(
    "--queue", type=click.IntRange(0, QUEUE_MAX), help="The queue; spread over all if not given."
)
@click.option("--dedup-id", help="With --body: put it once, however often this is run.")
@click.option("--group", "message_group", help="Keep the messages in order, in one queue.")
@delay_options
@click.option(
    "--delay-level",
    type=click.IntRange(1, len(DELAY_LEVELS_MS)),
    metavar="N",
    help="Deliver it after a delay of RocketMQ's levels: 1 is 1 s, 18 are 2 h.",
)
@click.option("--expires-at", type=Instant(), help="When pulls and pops begin to pass it over.")
@click.option("--ttl", type=Seconds(0, _TTL_MAX), metavar="SECONDS",
              help="As --expires-at, so long from now.")  # fmt: skip
@click.option("--create", is_flag=True, help="Make store and topic if they are not there.")
@click.option("--batch", type=click.IntRange(min=1), default=256, show_default=True, metavar="N",
              help="Messages put at once; 1 for a stream that must not wait.")  # fmt: skip
@config_option
@store_options
def put(
    store: VerbStore, topic: str, source: BinaryIO | None, body: str | None, jsonl: bool,
    ttl: float | None, batch: int, create: bool, config_file: Path | None, **fields: Any,
) -> None:  # fmt: skip
    """Put messages into TOPIC of the store in DIR: one for each line of FILE or standard input.

    With --jsonl a line is an object with body (or body_base64) and, if wanted, topic, queue, tag,
    keys, properties, message_group, dedup_id, expires_at, and one of deliver_at (both ms since the
    epoch), delay (seconds) and delay_level; what it does not say, TOPIC and the options do. With
    --json each message's place is printed as one JSON line; the offset of a delayed message is -1.

    A line that can't be put ends the run with its number: the lines before it are stored, it and
    those behind it are not.
    """
    if body is not None and (source is not None or jsonl):
        raise click.UsageError("give either --body or lines to read")
    if [fields[name] for name in _DELAYS].count(None) < len(_DELAYS) - 1:
        raise click.UsageError("give one of --delay, --deliver-at and --delay-level")
    if ttl is not None:
        if fields["expires_at"] is not None:
            raise click.UsageError("give either --expires-at or --ttl")
        fields["expires_at"] = SystemClock().now_ms() + whole_ms(ttl)
    if body is None and fields["dedup_id"] is not None:
        raise click.UsageError(
            "--dedup-id is the id of one message: give it with --body, or as dedup_id in a line of "
            "--jsonl"
        )
    defaults = {name: value for name, value in fields.items() if value}
    # Queue 0 is a queue, a delay of 0 is one; a time of 0 and an empty id are to be refused.
    kept = ("queue", "expires_at", "dedup_id", *_DELAYS)
    defaults |= {name: fields[name] for name in kept if fields[name] is not None}
    defaults["properties"] = dict(fields["properties"])
    does = store.text("put_batch", Word("[kvstore.Message(...), ...]"))
    opened = store.writing(does, config_file, create=create)
    with opened as calls:
        if create:
            calls.create_topic(topic, exist_ok=True)
        if body is not None:
            result = calls.put_batch([Message(topic=topic, body=body.encode(), **defaults)])[0]
            _show_one(store.out, result)
            return
        own = MessageLine(**{"topic": topic, **defaults, "keys": list(fields["keys"])})
        lines = _Lines(source or sys.stdin.buffer, own, is_json=jsonl)
        _put_lines(store.out, calls, lines, batch)


class _Lines:
    """Lines to put; `defaults` has the values of fields that a line lacks."""

    def __init__(self, source: BinaryIO, defaults: MessageLine, *, is_json: bool) -> None:
        self._name = name_of(source)
        self._numbered = enumerate(source, 1)
        self._defaults = defaults
        self._is_json = is_json

    def put(self, calls: StoreOrNamespace, most: int) -> Iterator[ColumnsPut]:
        """Puts all lines, at most so many at once. A line at fault raises its error when those
        before it are put.
        """
        while some := list(islice(self._numbered, most)):
            good: list[_NumberedLine] = []
            for number, text in some:
                try:
                    line = self._read(text.removesuffix(b"\n"))
                except MessageIllegal as e:
                    yield from self._put_good(calls, good)
                    raise MessageIllegal(f"{self._place(number)}: {e}") from e
                if line is not None:
                    good.append((number, line))
            yield from self._put_good(calls, good)

    def _read(self, text: bytes) -> MessageLine | None:
        if not self._is_json:
            return MessageLine(body=text)
        return line_from_json(text) if text.strip() else None

    def _put_good(
        self, calls: StoreOrNamespace, lines: Sequence[_NumberedLine]
    ) -> Iterator[ColumnsPut]:
        topic = self._defaults.topic
        for name, some in groupby(lines, lambda line: line[1].topic or topic):
            yield from self._put_topic(calls, str(name), list(some))

    def _put_topic(
        self, calls: StoreOrNamespace, topic: str, lines: Sequence[_NumberedLine]
    ) -> Iterator[ColumnsPut]:
        try:
            done = calls.put_columns(topic, columns_of([line for _, line in lines], self._defaults))
        except CallerError as e:
            row = row_at_fault(e)
            if row is not None:
                name_line(e, self._place(lines[row][0]))
                if row:
                    # A line before it may be at fault, too, and is then the one to be named.
                    yield from self._put_topic(calls, topic, lines[:row])
            raise
        yield done

    def _place(self, number: int) -> str:
        return f"{self._name}, line {number}"


def _put_lines(out: Output, calls: StoreOrNamespace, lines: _Lines, batch: int) -> None:
    clock = SystemClock()
    begin = clock.monotonic()
    count = size = duplicates = 0
    try:
        with out.progress() as report:
            for done in lines.put(calls, batch):
                count += done.count
                size += done.size
                duplicates += done.duplicates
                if out.json:
                    for result in done.results():
                        out.line(_fields(result))
                report("putting", count, 0)
    except StoreError as e:
        e.add_note(f"{count:,} messages were put before that")
        raise
    if not out.json:
        seconds = clock.monotonic() - begin
        rate = count / seconds if seconds else 0.0
        there = f" ({duplicates:,} of them were there before)" if duplicates else ""
        log = f"{size_text(size)} of log"
        out.text(f"{count:,} messages{there}, {log}, {seconds:.2f} s, {rate:,.0f}/s")


def _fields(result: PutResult) -> dict[str, object]:
    return {name: getattr(result, name) for name in result.__match_args__}


def _show_one(out: Output, result: PutResult) -> None:
    if out.json:
        out.line(_fields(result))
        return
    names = ["topic", "queue", "offset", "position", "size", "status", "message_id"]
    names += ["duplicate"] if result.duplicate else []
    out.table(names, [[str(getattr(result, name)) for name in names]])
