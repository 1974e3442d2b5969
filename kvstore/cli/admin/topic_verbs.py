"""The verbs `topic ...` and `namespace ...`, and retention as they take and show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from kvstore import (
    GroupConfig,
    NamespaceNotFound,
    Retention,
    Store,
    TopicConfig,
    TopicInfo,
)
from kvstore.cli.terminal.opening import (
    VerbStore,
    Word,
    call_text,
    config_option,
    exist_ok_option,
    folder_argument,
    open_store,
    store_options,
    time_text,
    within,
)
from kvstore.cli.terminal.options import Clearable, Option, changes_of, given_of, listed
from kvstore.cli.terminal.output import Output, output_option
from kvstore.clock import whole_ms
from kvstore.config import QUEUES_DEFAULT, QUEUES_MAX
from kvstore.meta.namespaces import wrap
from kvstore.meta.topic import KINDS
from kvstore.record.validate import check_topic

NONE: Final = "none"
_TIERS: Final = ("hot", "warm", "cold")


class RetentionText(click.ParamType[Retention]):
    """`hot=1d,warm=7d,cold=30d`; the policy decides for tiers that are not named, and for
    `none`.
    """

    name = "TIER=TIME,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Retention:
        """See `click.ParamType`."""
        from tiering.policy.policy import parse_duration

        if isinstance(value, Retention):
            return value
        found: dict[str, float] = {}
        for word in [] if value == NONE else str(value).split(","):
            tier, _, text = word.strip().partition("=")
            milliseconds = parse_duration(text)
            if tier not in _TIERS or milliseconds is None or tier in found:
                self.fail(
                    f"{value!r} is not like hot=1d,warm=7d,cold=30d; {NONE!r} is no retention of "
                    "the topic's own",
                    param,
                    ctx,
                )
            found[tier] = milliseconds / 1000
        return Retention(
            hot_for=found.get("hot"), warm_for=found.get("warm"), cold_for=found.get("cold")
        )


def retention_text(retention: Retention) -> str:
    """The text that `RetentionText` reads as that retention."""
    from tiering.policy.policy import format_duration

    given = {tier: getattr(retention, f"{tier}_for") for tier in _TIERS}
    words = [f"{t}={format_duration(whole_ms(s))}" for t, s in given.items() if s is not None]
    return ",".join(words) or NONE


_STORE: Final = "store"
_name_argument = click.argument("name")
_retention_option = click.option(
    "--retention", type=RetentionText(),
    help=f"How long messages stay in each tier: hot=1d,warm=7d; {NONE!r}: as the policy says.",
)  # fmt: skip
_settings: Option = listed(
    click.option("--read-queues", type=click.IntRange(min=1),
                 help="How many are read; as many as --queues."),
    click.option("--key-index", type=click.Choice(["all", "unique", "off"]),
                 help="What `query` finds: all keys and the unique id, the unique id, or nothing."),
    click.option("--compress-above", metavar="BYTES", type=Clearable(click.INT, _STORE),
                 help=f"Compress larger bodies; {_STORE!r}: as the store's settings say."),
    click.option("--compression",
                 type=Clearable(click.Choice(["zlib", "lz4", "zstd"]), _STORE),
                 metavar="[zlib|lz4|zstd|store]", help="With what."),
    click.option("--takes-delays/--takes-no-delays", default=None,
                 help="Whether messages may be delayed."),
    click.option("--dedup-window", metavar="SECONDS", type=Clearable(click.FLOAT, NONE),
                 help=f"How long dedup ids are remembered; {NONE!r}: the topic takes none."),
    _retention_option,
)  # fmt: skip
"""The options that `topic create` and `topic alter` share."""


@click.group()
def topic() -> None:
    """Create, list, show, alter or delete topics."""


@topic.command()
@folder_argument
@_name_argument
@click.option("--queues", type=click.IntRange(1, QUEUES_MAX), default=QUEUES_DEFAULT,
              show_default=True)  # fmt: skip
@click.option("--kind", type=click.Choice(KINDS), default="normal", show_default=True)
@exist_ok_option
@_settings
@config_option
@store_options
def create(
    store: VerbStore, name: str, queues: int, kind: Any, exist_ok: bool, config_file: Path | None,
    **settings: Any,
) -> None:  # fmt: skip
    """Create topic NAME, and the store in DIR if there is none."""
    more = {"kind": kind, "exist_ok": exist_ok, **given_of(settings)}
    does = store.text("create_topic", name, queues, **more)
    # Checked before a store is made for the topic.
    check_topic(_name_in_store(name, store.namespace))
    with store.writing(does, config_file, create=True) as calls:
        made = calls.create_topic(name, queues, **more)
    _show_topics(store.out, made, [made])


def _name_in_store(name: str, namespace: str | None) -> str:
    return name if namespace is None else wrap(namespace, name)


@topic.command(name="list")
@folder_argument
@store_options
def list_topics(store: VerbStore) -> None:
    """List the topics of the store in DIR."""
    with store.reading() as calls:
        topics = calls.topics()
    _show_topics(store.out, topics, topics)


@topic.command()
@folder_argument
@_name_argument
@store_options
def show(store: VerbStore, name: str) -> None:
    """Show topic NAME and the contents of its queues."""
    with store.reading() as calls:
        info = calls.topic(name)
        bounds = [calls.bounds(name, queue=queue) for queue in range(info.read_queues)]
    rows = [(queue, b.min_offset, b.next_offset) for queue, b in enumerate(bounds)]
    names = ("queue", "min_offset", "next_offset")
    queues = [dict(zip(names, row, strict=True)) for row in rows]
    _show_topics(store.out, msgspec.to_builtins(info) | {"queues": queues}, [info])
    if not store.out.json:
        counted = [(*row, row[2] - row[1]) for row in rows]
        store.out.table(("queue", "min offset", "next offset", "messages"), counted)


@topic.command()
@folder_argument
@_name_argument
@click.option("--queues", type=click.IntRange(min=1), help="How many queues take messages.")
@_settings
@store_options
def alter(store: VerbStore, name: str, **settings: Any) -> None:
    """Change settings of topic NAME; the others stay.

    Queues taken away stay readable; --read-queues takes them from readers too, once they are empty.
    A retention takes the place of the one before; a worker (`kvmq tier run`) goes by it. Archives
    that hold other topics, too, stay as long as those need them, which the answer says.
    """
    changes = changes_of(settings)
    does = store.text("alter_topic", name, **changes)
    shared: dict[str, Any] = {}
    advice = ""
    with open_store(store.out, store.folder, does=does) as opened:
        altered = within(opened, store.namespace).alter_topic(name, **changes)
        if "retention" in changes:
            shared, advice = _shared_archives(opened, _name_in_store(name, store.namespace))
    _show_topics(store.out, msgspec.to_builtins(altered) | shared, [altered])
    if advice and not store.out.json:
        store.out.text(advice)


@topic.command()
@folder_argument
@_name_argument
@store_options
def delete(store: VerbStore, name: str) -> None:
    """Delete topic NAME; its messages can no longer be read.

    Messages that wait for a time or a transaction go with it: their number is told (waiting).
    """
    waiting = store.call("delete_topic", name)
    _show_deleted(store.out, name, waiting)


def _show_deleted(out: Output, name: str, waiting: int) -> None:
    out.done({"deleted": name, "waiting": waiting})
    if waiting and not out.json:
        click.echo(f"{waiting:,} messages that waited went with it")


def _show_topics(out: Output, value: object, topics: list[TopicInfo]) -> None:
    rows = [
        (
            t.name, t.id, t.read_queues, t.write_queues, str(t.kind), str(t.key_index),
            retention_text(t.retention),
        )
        for t in topics
    ]  # fmt: skip
    names = ("topic", "id", "read queues", "write queues", "kind", "key index", "retention")
    out.show(value, names, rows)


def _shared_archives(store: Store, topic: str) -> tuple[dict[str, Any], str]:
    """The archives that a topic's new retention does not reach, for machines and for people:
    archives that hold other topics, too, stay until these expire. `topic` is the name in the store.
    """
    from tiering import held_together

    found = held_together(store, topic)
    values = {"shared_archives": len(found.archives), "shared_until": found.until}
    if not found.archives:
        return values, ""
    many = len(found.archives) > 1
    until = "for ever" if found.until is None else f"until {time_text(found.until)}"
    return values, (
        f"{len(found.archives):,} archive{'s' * many} hold{'s' * (not many)} other topics, too, "
        f"and {'stay' if many else 'stays'} {until}; "
        f"`kvmq tier merge DIR --policy FILE --topic {topic}` parts {'them' if many else 'it'}"
    )


@click.group()
def namespace() -> None:
    """Create, list, show or delete namespaces."""


@namespace.command("create")
@folder_argument
@_name_argument
@click.option("--topic", "topics", multiple=True, help="A topic to make in it; may be repeated.")
@click.option("--group", "groups", multiple=True, help="A group to make in it; may be repeated.")
@exist_ok_option
@output_option
def create_namespace(
    out: Output, folder: Path, name: str, topics: tuple[str, ...], groups: tuple[str, ...],
    exist_ok: bool,
) -> None:  # fmt: skip
    """Create namespace NAME, with topics and groups, all or nothing."""
    does = call_text(
        "create_namespace",
        name,
        topics=[Word(f"kvstore.TopicConfig(name={topic!r})") for topic in topics] or None,
        groups=[Word(f"kvstore.GroupConfig(name={group!r})") for group in groups] or None,
        exist_ok=exist_ok or None,
    )
    with open_store(out, folder, does=does) as store:
        store.create_namespace(
            name,
            topics=[TopicConfig(name=topic) for topic in topics],
            groups=[GroupConfig(name=group) for group in groups],
            exist_ok=exist_ok,
        )
    out.done({"created": name})


@namespace.command(name="list")
@folder_argument
@output_option
def list_namespaces(out: Output, folder: Path) -> None:
    """List the namespaces of the store in DIR, also those only names speak of."""
    with open_store(out, folder, read_only=True) as store:
        names = store.namespaces()
        rows = [(n, len(store.topics_of(n)), len(store.groups_of(n))) for n in names]
    out.rows(("namespace", "topics", "groups"), rows)


@namespace.command("show")
@folder_argument
@_name_argument
@output_option
def show_namespace(out: Output, folder: Path, name: str) -> None:
    """Show the topics and groups of namespace NAME."""
    with open_store(out, folder, read_only=True) as store:
        view = store.namespace(name)
        topics, groups = view.topics(), view.groups()
        if not topics and not groups and name not in store.namespaces():
            raise NamespaceNotFound(f"there is no namespace {name!r}; `namespaces` lists them")
    rows = [
        *(("topic", t.name, t.read_queues) for t in topics),
        *(("group", g.name, None) for g in groups),
    ]
    value = {"namespace": name, "topics": topics, "groups": groups}
    out.show(value, ("what", "name", "queues"), rows)


@namespace.command("delete")
@folder_argument
@_name_argument
@output_option
def delete_namespace(out: Output, folder: Path, name: str) -> None:
    """Delete namespace NAME with all its topics and groups; messages can no longer be read.

    Messages that wait for a time or a transaction go with it: their number is told (waiting).
    """
    _show_deleted(out, name, VerbStore(out, folder, None).call("delete_namespace", name))
