"""The verbs `topic create|list|show|alter|delete`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from kvstore import TopicInfo
from kvstore.cli.admin.namespace import namespace_option, within
from kvstore.cli.terminal.opening import (
    call_text,
    config_option,
    exist_ok_option,
    folder_argument,
    open_store,
)
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.terminal.retention import NONE, RetentionText, retention_text, shared_archives
from kvstore.config import QUEUES_DEFAULT, QUEUES_MAX
from kvstore.meta.namespaces import wrap
from kvstore.meta.topic import KINDS_OFFERED
from kvstore.record.validate import check_topic

_STORE = "store"
_name_argument = click.argument("name")
_key_index_option = click.option(
    "--key-index",
    type=click.Choice(["all", "unique", "off"]),
    help="What `query` finds: all keys and the unique id, the unique id, or nothing.",
)
_read_queues_option = click.option(
    "--read-queues", type=click.IntRange(min=1), help="How many are read; as many as --queues."
)
_compress_option = click.option(
    "--compress-above",
    metavar="BYTES",
    help=f"Compress larger bodies; {_STORE!r}: as the store's settings say.",
)
_codec_option = click.option(
    "--compression", type=click.Choice(["zlib", "lz4", "zstd", _STORE]), help="With what."
)


_retention_option = click.option(
    "--retention", type=RetentionText(),
    help=f"How long messages stay in each tier: hot=1d,warm=7d; {NONE!r}: as the policy says.",
)  # fmt: skip


@click.group()
def topic() -> None:
    """Create, list, show, alter or delete topics."""


@topic.command()
@folder_argument
@_name_argument
@click.option("--queues", type=click.IntRange(1, QUEUES_MAX), default=QUEUES_DEFAULT,
              show_default=True)  # fmt: skip
@click.option("--kind", type=click.Choice(KINDS_OFFERED), default="normal", show_default=True)
@exist_ok_option
@_read_queues_option
@_key_index_option
@_compress_option
@_codec_option
@_retention_option
@namespace_option
@config_option
@output_option
def create(
    out: Output, folder: Path, name: str, queues: int, kind: Any, exist_ok: bool,
    namespace: str | None, config_file: Path | None, **settings: Any,
) -> None:  # fmt: skip
    """Create topic NAME, and the store in DIR if there is none."""
    more = {"kind": kind, "exist_ok": exist_ok, **_given(settings)}
    does = call_text("create_topic", name, queues, namespace=namespace, **more)
    # Checked before a store is made for the topic.
    check_topic(name if namespace is None else wrap(namespace, name))
    with open_store(out, folder, config_file, create=True, does=does) as store:
        _show(out, [within(store, namespace).create_topic(name, queues, **more)])


@topic.command(name="list")
@folder_argument
@namespace_option
@output_option
def list_topics(out: Output, folder: Path, namespace: str | None) -> None:
    """List the topics of the store in DIR."""
    with open_store(out, folder, read_only=True) as store:
        topics = within(store, namespace).topics()
    if out.json:
        out.document(topics)
    else:
        _show(out, topics)


@topic.command()
@folder_argument
@_name_argument
@namespace_option
@output_option
def show(out: Output, folder: Path, name: str, namespace: str | None) -> None:
    """Show topic NAME and the contents of its queues."""
    with open_store(out, folder, read_only=True) as store:
        calls = within(store, namespace)
        info = calls.topic(name)
        bounds = [calls.bounds(name, queue=queue) for queue in range(info.read_queues)]
    if out.json:
        queues = [
            {"queue": queue, "min_offset": b.min_offset, "next_offset": b.next_offset}
            for queue, b in enumerate(bounds)
        ]
        out.document(msgspec.to_builtins(info) | {"queues": queues})
        return
    _show(out, [info])
    rows = [
        (queue, b.min_offset, b.next_offset, b.next_offset - b.min_offset)
        for queue, b in enumerate(bounds)
    ]
    out.table(("queue", "min offset", "next offset", "messages"), rows)


@topic.command()
@folder_argument
@_name_argument
@click.option("--queues", type=click.IntRange(min=1), help="How many queues take messages.")
@_read_queues_option
@_key_index_option
@_compress_option
@_codec_option
@_retention_option
@namespace_option
@output_option
def alter(out: Output, folder: Path, name: str, namespace: str | None, **settings: Any) -> None:
    """Change settings of topic NAME; the others stay.

    Queues taken away stay readable; --read-queues takes them from readers too, once they are empty.
    A retention takes the place of the one before; a worker (`kvmq tier run`) goes by it. Archives
    that hold other topics, too, stay as long as those need them, which the answer says.
    """
    changes = _given(settings)
    if not changes:
        raise click.UsageError("give what to change; --help lists the settings")
    does = call_text("alter_topic", name, namespace=namespace, **changes)
    with open_store(out, folder, does=does) as store:
        altered = within(store, namespace).alter_topic(name, **changes)
        shared: dict[str, Any] = {}
        told = ""
        if "retention" in changes:
            own = name if namespace is None else wrap(namespace, name)
            shared, told = shared_archives(store, own)
    if out.json:
        out.document(msgspec.to_builtins(altered) | shared)
        return
    _show(out, [altered])
    if told:
        out.text(told)


@topic.command()
@folder_argument
@_name_argument
@namespace_option
@output_option
def delete(out: Output, folder: Path, name: str, namespace: str | None) -> None:
    """Delete topic NAME; its messages can no longer be read."""
    does = call_text("delete_topic", name, namespace=namespace)
    with open_store(out, folder, does=does) as store:
        within(store, namespace).delete_topic(name)
    if out.json:
        out.document({"deleted": name})


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, in the form the store takes them."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name in ("compress_above", "compression"):
        if given.get(name) == _STORE:
            given[name] = None
    if isinstance(given.get("compress_above"), str):
        try:
            given["compress_above"] = int(given["compress_above"])
        except ValueError:
            raise click.UsageError(f"--compress-above takes bytes, or {_STORE}") from None
    return given


def _show(out: Output, topics: list[TopicInfo]) -> None:
    if out.json:
        out.document(topics[0])
        return
    rows = [
        (
            t.name, t.id, t.read_queues, t.write_queues, str(t.kind), str(t.key_index),
            retention_text(t.retention),
        )
        for t in topics
    ]  # fmt: skip
    names = ("topic", "id", "read queues", "write queues", "kind", "key index", "retention")
    out.table(names, rows)
