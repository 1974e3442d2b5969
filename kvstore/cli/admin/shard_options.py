"""Shard options: how `serve` is told of shards, and the processes of a folder with several.

The idea: a folder with shards is no store: it has a lock, the list of the shards, and a folder for
each. The supervisor's process holds the lock; each shard is another `kvmq serve`, with the options
that were given here, and ports that are counted on.

Invariants: the lock says who serves the folder as long as the supervisor lives; no shard that is
there is left out of the list.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import msgspec

import kvstore
from kvstore import GroupConfig, TopicConfig
from kvstore.cli.admin.door_options import DoorOptions
from kvstore.cli.terminal.opening import environment_target
from kvstore.cli.terminal.options import LocalPath, Option, one_argument
from kvstore.config import StoreConfig
from kvstore.core.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS
from kvstore.errors import CallerError, StoreNotFound
from kvstore.opening.store_folder import CLUSTER_FILE, COMMITLOG, INDEX, acquire, folder_lock
from kvstore.process.signals import on_signal
from kvstore.sharding.membership import Membership
from kvstore.sharding.supervisor import Supervisor
from kvstore.wire.addresses import Address, socket_of
from kvstore.wire.cluster_file import Cluster, ShardEntry, cluster_url, read_cluster

_SHARD: Final = "shard-"
T = TypeVar("T", TopicConfig, GroupConfig)
Told = Callable[[str, Mapping[str, Any]], None]


class ShardOptions(NamedTuple):
    """The options: a number of shards, or the list in which this server is one of a name."""

    number: int | None
    cluster_file: Path | None
    name: str | None
    is_supervised: bool

    def cluster(self) -> Membership | None:
        """The cluster in which this server is a shard; None if it is alone. It connects to the
        others with what the environment has for their URLs.
        """
        if (self.cluster_file is None) != (self.name is None):
            raise CallerError("--cluster and --shard go together; one of them is missing")
        if self.cluster_file is None or self.name is None:
            return None
        cluster = read_cluster(self.cluster_file)
        cluster.named(self.name)
        found: dict[str, Any] = {}
        for shard in cluster.shards:
            if shard.url and shard.name != self.name:
                found |= environment_target(shard.url)
        return Membership(cluster, self.name, **found)


class ServedShards(NamedTuple):
    """The shards of a folder, and the words with which each is served."""

    folder: Path
    cluster: Cluster
    commands: dict[str, list[str]]
    new: list[str]
    """Those that are to be made."""


def plan_shards(
    folder: Path,
    count: int,
    doors: DoorOptions,
    addresses: Sequence[Address],
    words: list[str],
    *,
    create: bool,
) -> ServedShards:
    """Plans the shards of a folder; `addresses` are those of the first one beside its socket,
    `words` the options that all of them get. `CallerError`, `StoreNotFound`.
    """
    folder = folder.absolute()
    if any((folder / part).exists() for part in (COMMITLOG, INDEX)):
        raise CallerError(f"{folder} is a store by itself; shards take a folder of their own")
    there = {path.name for path in folder.glob(f"{_SHARD}*")} if folder.is_dir() else set()
    names = [f"{_SHARD}{n}" for n in range(count)]
    if not there <= set(names):
        raise CallerError(
            f"{folder} has {len(there)} shards; --shards {count} would leave some out, with their "
            "messages"
        )
    if not create and not set(names) <= there:
        raise StoreNotFound(f"{folder} has {len(there)} of {count} shards; --create makes the rest")
    entries = [
        ShardEntry(name, socket_of(folder / name).url, _place(doors.grpc, number) or "")
        for number, name in enumerate(names)
    ]
    commands = {
        name: [
            sys.executable, "-m", "kvstore", "serve", str(folder / name), "--json", "--supervised",
            "--cluster", str(folder / CLUSTER_FILE), "--shard", name,
            *_listen_words(folder / name, addresses, number),
            *_door_words(doors, number), *words, *(["--create"] if create else []),
        ]
        for number, name in enumerate(names)
    }  # fmt: skip
    new = [name for name in names if name not in there]
    return ServedShards(folder, Cluster(entries), commands, new)


def _place(place: tuple[str, int] | None, number: int) -> str | None:
    """A shard's door as HOST:PORT."""
    if place is None:
        return None
    host, port = place
    if not 0 < port < 65_536 - number:
        raise CallerError(
            f"the door at port {port} has no port for shard {number}: each shard takes the next "
            "one, and none can be left open"
        )
    return f"[{host}]:{port + number}" if ":" in host else f"{host}:{port + number}"


def _listen_words(folder: Path, addresses: Sequence[Address], number: int) -> list[str]:
    words = ["--listen", socket_of(folder).url]
    for address in addresses:
        if address.path is not None:
            raise CallerError(
                f"--listen {address.url}: each shard has a socket of its own, in its folder; "
                "name a host and the port of the first shard"
            )
        _place((address.host, address.port), number)
        words += ["--listen", address._replace(port=address.port + number).url]
    return words


def _door_words(doors: DoorOptions, number: int) -> list[str]:
    given = (
        ("--http", _place(doors.http, number)),
        ("--grpc", _place(doors.grpc, number)),
        ("--credentials", doors.credentials),
        ("--tls-certificate", doors.certificate),
        ("--tls-key", doors.key),
    )
    return [str(word) for option, value in given if value is not None for word in (option, value)]


@contextmanager
def _held(shards: ServedShards, config: StoreConfig) -> Iterator[None]:
    """Holds the folder for the time of the block, with the list of its shards in it."""
    lock = folder_lock(shards.folder, config)
    try:
        acquire(lock, shards.folder, config)
        file = shards.folder / CLUSTER_FILE
        config.files.write_new(file, [shards.cluster.text().encode()], replace=True)
        lock.say_served(cluster_url(file))
        yield
    finally:
        lock.release()


def supervise(shards: ServedShards, config: StoreConfig, told: Told) -> None:
    """Serves the shards until a signal ends it; `told` is called for each door of each of them."""
    with _held(shards, config):
        _give_names(shards, config)
        asyncio.run(_supervise(shards, told))


def _give_names(shards: ServedShards, config: StoreConfig) -> None:
    """Makes new shards with the topics and groups of the first that is there: all have the same."""
    known = [shard.name for shard in shards.cluster.shards if shard.name not in shards.new]
    if not known or not shards.new:
        return
    with kvstore.open(shards.folder / known[0], config, read_only=True) as first:
        topics = [_settings(TopicConfig, info, queues=info.write_queues) for info in first.topics()
                  if not _is_stores_own(info.name)]  # fmt: skip
        groups = [_settings(GroupConfig, info) for info in first.groups()]
    for name in shards.new:
        with kvstore.open(shards.folder / name, config) as store:
            store.create_topics(topics)
            store.create_groups(groups)


def _is_stores_own(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith((DLQ_PREFIX, RETRY_PREFIX))


def _settings(kind: type[T], info: msgspec.Struct, **given: Any) -> T:
    """The settings with which another topic or group is made as one is."""
    names = {field.name for field in msgspec.structs.fields(kind)} - given.keys()
    return kind(**{name: getattr(info, name) for name in names}, **given)


async def _supervise(shards: ServedShards, told: Told) -> None:
    supervisor = Supervisor(shards.commands, told)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        on_signal(loop, number, supervisor.stop)
    on_signal(loop, signal.SIGHUP, partial(supervisor.send, signal.SIGHUP))
    await supervisor.run()


shard_options: Option = one_argument(
    "shards",
    ShardOptions,
    number=click.option("--shards", "number", type=click.IntRange(1, 64), metavar="N",
                       help="Serve N stores below DIR, a process each."),
    cluster_file=click.option("--cluster", "cluster_file", metavar="FILE",
                              type=LocalPath(dir_okay=False),
                              help="The list of shards of which this server is one."),
    name=click.option("--shard", "name", metavar="NAME", help="Its name in the list."),
    is_supervised=click.option("--supervised", "is_supervised", is_flag=True, hidden=True),
)  # fmt: skip
"""The options of shards, as the argument `shards`."""
