"""The verbs `namespace create|list|show|delete`, and the option by which others work in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvstore import GroupConfig, Namespace, NamespaceNotFound, Store, TopicConfig
from kvstore.cli.terminal.opening import call_text, exist_ok_option, folder_argument, open_store
from kvstore.cli.terminal.output import Output, output_option

namespace_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--namespace", metavar="NAME", help="Work in this namespace: names are those it has in it."
)


def within(store: Store, namespace: str | None) -> Store | Namespace:
    """The calls of the store, or of the namespace that was named."""
    return store if namespace is None else store.namespace(namespace)


@click.group()
def namespace() -> None:
    """Create, list, show or delete namespaces."""


@namespace.command()
@folder_argument
@click.argument("name")
@click.option("--topic", "topics", multiple=True, help="A topic to make in it; may be repeated.")
@click.option("--group", "groups", multiple=True, help="A group to make in it; may be repeated.")
@exist_ok_option
@output_option
def create(
    out: Output, folder: Path, name: str, topics: tuple[str, ...], groups: tuple[str, ...],
    exist_ok: bool,
) -> None:  # fmt: skip
    """Create namespace NAME, with topics and groups, all or nothing."""
    with open_store(out, folder, does=call_text("create_namespace", name)) as store:
        store.create_namespace(
            name,
            topics=[TopicConfig(name=topic) for topic in topics],
            groups=[GroupConfig(name=group) for group in groups],
            exist_ok=exist_ok,
        )
    if out.json:
        out.document({"created": name})


@namespace.command(name="list")
@folder_argument
@output_option
def list_namespaces(out: Output, folder: Path) -> None:
    """List the namespaces of the store in DIR, also those only names speak of."""
    with open_store(out, folder, read_only=True) as store:
        names = store.namespaces()
        rows = [(n, len(store.topics_of(n)), len(store.groups_of(n))) for n in names]
    columns = ("namespace", "topics", "groups")
    if out.json:
        out.document([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        out.table(columns, rows)


@namespace.command()
@folder_argument
@click.argument("name")
@output_option
def show(out: Output, folder: Path, name: str) -> None:
    """Show the topics and groups of namespace NAME."""
    with open_store(out, folder, read_only=True) as store:
        view = store.namespace(name)
        topics, groups = view.topics(), view.groups()
        if not topics and not groups and name not in store.namespaces():
            raise NamespaceNotFound(f"there is no namespace {name!r}; `namespaces` lists them")
    if out.json:
        out.document({"namespace": name, "topics": topics, "groups": groups})
        return
    rows = [("topic", t.name, t.read_queues) for t in topics]
    out.table(("what", "name", "queues"), [*rows, *(("group", g.name, None) for g in groups)])


@namespace.command()
@folder_argument
@click.argument("name")
@output_option
def delete(out: Output, folder: Path, name: str) -> None:
    """Delete namespace NAME with all its topics and groups; messages can no longer be read."""
    with open_store(out, folder, does=call_text("delete_namespace", name)) as store:
        store.delete_namespace(name)
    if out.json:
        out.document({"deleted": name})
