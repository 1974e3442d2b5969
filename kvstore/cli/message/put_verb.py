"""The verb `put`: messages from a command line, from lines, from JSON lines.

The idea: a stream is put in batches, as a program would. A line at fault ends the run with its
number. The lines before it are put, those of its batch too, and the error says how many.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from kvstore import Message, PutResult, Store
from kvstore.cli.terminal.message_text import (
    index_at_fault,
    message_from_json,
    name_line,
    name_of,
)
from kvstore.cli.terminal.opening import config_option, folder_argument, open_store, topic_argument
from kvstore.cli.terminal.options import LocalFile, Setting
from kvstore.cli.terminal.output import Output, output_option, size_text
from kvstore.clock import SystemClock
from kvstore.errors import CallerError, MessageIllegal, StoreError


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
    "--queue", type=click.IntRange(min=0), help="The queue; spread over all if not given."
)
@click.option("--group", "message_group", help="Keep the messages in order, in one queue.")
@click.option("--create", is_flag=True, help="Make store and topic if they are not there.")
@click.option("--batch", type=click.IntRange(min=1), default=256, show_default=True, metavar="N",
              help="Messages put at once; 1 for a stream that must not wait.")  # fmt: skip
@config_option
@output_option
def put(
    out: Output, folder: Path, topic: str, source: BinaryIO | None, body: str | None, jsonl: bool,
    batch: int, create: bool, config_file: Path | None, **fields: Any,
) -> None:  # fmt: skip
    """Put messages into TOPIC of the store in DIR: one for each line of FILE or standard input.

    With --jsonl a line is an object with body (or body_base64) and, if wanted, topic, queue, tag,
    keys, properties and message_group; what it does not say, TOPIC and the options do. With --json
    each message's place is printed as one JSON line.

    A line that can't be put ends the run with its number: the lines before it are stored, it and
    those behind it are not.
    """
    if body is not None and (source is not None or jsonl):
        raise click.UsageError("give either --body or lines to read")
    defaults = {name: value for name, value in fields.items() if value}
    if fields["queue"] is not None:  # queue 0 is a queue
        defaults["queue"] = fields["queue"]
    defaults["properties"] = dict(fields["properties"])
    does = "store.put_batch([kvstore.Message(...), ...])"
    with open_store(out, folder, config_file, create=create, does=does) as store:
        if create:
            store.create_topic(topic, exist_ok=True)
        if body is not None:
            result = store.put_batch([Message(topic=topic, body=body.encode(), **defaults)])[0]
            _show_one(out, result)
            return
        lines = source or sys.stdin.buffer
        _put_lines(out, store, _messages(lines, topic, jsonl, defaults), batch)


class _NumberedMessage(NamedTuple):
    """A message, and the number of its line."""

    place: str
    message: Message


def _messages(
    lines: BinaryIO, topic: str, jsonl: bool, defaults: dict[str, Any]
) -> Iterator[_NumberedMessage]:
    name = name_of(lines)
    for number, line in enumerate(lines, 1):
        text, place = line.removesuffix(b"\n"), f"{name}, line {number}"
        if not jsonl:
            yield _NumberedMessage(place, Message(topic=topic, body=text, **defaults))
            continue
        if not text.strip():
            continue
        try:
            yield _NumberedMessage(place, message_from_json(text, topic, defaults))
        except MessageIllegal as e:
            raise MessageIllegal(f"{place}: {e}") from e


def _put_lines(out: Output, store: Store, messages: Iterator[_NumberedMessage], batch: int) -> None:
    clock = SystemClock()
    begin = clock.monotonic()
    count = size = 0
    try:
        with out.progress() as report:
            for results in _put_batches(store, _batches(messages, batch)):
                count += len(results)
                size += sum(result.size for result in results)
                if out.json:
                    for result in results:
                        out.line(_fields(result))
                report("putting", count, 0)
    except StoreError as e:
        e.add_note(f"{count:,} messages were put before that")
        raise
    if not out.json:
        seconds = clock.monotonic() - begin
        rate = count / seconds if seconds else 0.0
        out.text(f"{count:,} messages, {size_text(size)} of log, {seconds:.2f} s, {rate:,.0f}/s")


def _put_batches(
    store: Store, batches: Iterator[list[_NumberedMessage]]
) -> Iterator[list[PutResult]]:
    """Puts batch after batch. Of a batch with a message at fault the messages before it are put;
    then its error is raised, which names its line.
    """
    for batch in batches:
        try:
            results = store.put_batch([line.message for line in batch])
        except CallerError as e:
            at = index_at_fault(e, len(batch))
            if at is not None:
                name_line(e, batch[at].place)
                if at:
                    yield store.put_batch([line.message for line in batch[:at]])
            raise
        yield results


def _batches(messages: Iterator[_NumberedMessage], most: int) -> Iterator[list[_NumberedMessage]]:
    """Batches of at most `most` messages; the messages before one at fault come before its
    error.
    """
    waiting: list[_NumberedMessage] = []
    while True:
        try:
            message = next(messages, None)
        except StoreError:
            if waiting:
                yield waiting
            raise
        if message is None:
            break
        waiting.append(message)
        if len(waiting) == most:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _fields(result: PutResult) -> dict[str, object]:
    return {name: getattr(result, name) for name in result.__match_args__}


def _show_one(out: Output, result: PutResult) -> None:
    if out.json:
        out.document(_fields(result))
        return
    names: Sequence[str] = ("topic", "queue", "offset", "position", "size", "status", "message_id")
    out.table(names, [[str(getattr(result, name)) for name in names]])
