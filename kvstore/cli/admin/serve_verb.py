"""The verb `serve`: has a store open, and serves it to other processes until a signal ends it.

The idea: doors are made of options. The first one's URL stands in the folder's lock, so that other
openings and the other verbs find it.

Invariants: a line for each door is printed when clients can connect; SIGTERM and SIGINT end it by
draining: what was taken is made and answered, and the store is closed with a checkpoint. The
process ends `_END_WITHIN` seconds behind the signal at the latest, whatever its threads wait for.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from asyncio.sslproto import SSLProtocol
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

import kvstore
from kvstore.cli.admin.door_options import DoorOptions, door_options
from kvstore.cli.admin.shard_options import ShardOptions, plan_shards, shard_options, supervise
from kvstore.cli.terminal.opening import (
    config_option,
    folder_argument,
    read_config,
    require_store,
)
from kvstore.cli.terminal.options import Access, access_options, policy_option_at_need, read_policy
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.tier.server_worker import ServerWorker
from kvstore.config import StoreConfig
from kvstore.errors import CallerError, ConfigError, StoreLocked, StoreServed
from kvstore.opening.recovery import Progress
from kvstore.process.ending import end_within
from kvstore.process.freed_memory import keep_freed
from kvstore.process.signals import on_signal
from kvstore.serve.access.access_control import AccessControl
from kvstore.serve.door import Door
from kvstore.serve.gatherer import Gatherer
from kvstore.serve.server import Gathers, Server
from kvstore.wire.addresses import read_address, socket_of

_log = logging.getLogger("kvmq.serve")
_END_WITHIN: Final = 9.5
"""Seconds behind a signal; 10 are promised."""
_TLS_BUFFER: Final = 32 << 10
_YOUNG: Final = 50_000
"""Objects after which Python looks for garbage: what calls make goes by itself."""
_FREED: Final = 8 << 20
"""Freed bytes that a thread keeps: the messages and the reply of a usual call."""
_LARGE: Final = 1 << 20
"""Bytes of a body or a frame that goes back to the system when it is freed."""


class _JsonFormatter(logging.Formatter):
    """A line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return json.dumps({
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        })  # fmt: skip


@click.command()
@folder_argument
@click.option("--listen", "urls", metavar="URL", multiple=True,
              help="kvmq+unix:///PATH, kvmq://HOST:PORT or kvmq+tls://HOST:PORT; without it "
              "DIR/kvmq.sock.")  # fmt: skip
@click.option("--create", is_flag=True, help="Make the store if there is none in DIR.")
@click.option("--log-format", type=click.Choice(["people", "json"]), default="people",
              show_default=True, help="Of the log, which goes to stderr.")  # fmt: skip
@click.option("--traces", is_flag=True,
              help="Spans of calls on messages; takes OpenTelemetry, set up.")  # fmt: skip
@door_options
@shard_options
@policy_option_at_need
@access_options
@config_option
@output_option
def serve(
    out: Output,
    folder: Path,
    urls: tuple[str, ...],
    create: bool,
    log_format: str,
    traces: bool,
    policy_file: Path | None,
    access: Access,
    config_file: Path | None,
    doors: DoorOptions,
    shards: ShardOptions,
) -> None:
    """Serve the store in DIR to other processes, until SIGTERM or ctrl-C.

    They connect with kvstore.connect(URL); the other verbs of kvmq do by themselves. With --policy
    old segments are archived meanwhile, as by `kvmq tier run --watch`. Without --listen the socket
    is DIR/kvmq.sock, which only its owner may use. A door that other machines can reach takes
    --credentials and TLS. With --json a line for each door. With --shards several stores are served
    by as many processes; --listen, --http and --grpc name the first one's port.
    """
    addresses = [read_address(url) for url in urls] or [socket_of(folder)]
    _log_to_stderr(log_format)
    config = read_config(config_file, access)
    open_to = doors.read(config, addresses)
    if shards.number is not None:
        if shards.cluster_file is not None:
            raise CallerError("--shards goes without --cluster: the shards of DIR are one cluster")
        words = ["--log-format", log_format, *access.words()]
        words += ["--traces"] if traces else []
        words += [] if config_file is None else ["--config", str(config_file.absolute())]
        if policy_file is not None:
            read_policy(policy_file)  # it says what is wrong once, not for each shard
            words += ["--policy", str(policy_file.absolute())]
        given = addresses if urls else []
        plan = plan_shards(folder, shards.number, doors, given, words, create=create)
        supervise(plan, config, partial(_shard_ready, out))
        return
    if not create:
        require_store(folder, "`kvmq serve --create` makes one")
    _allow_many_files()
    _lessen_buffers()
    policy = None if policy_file is None else read_policy(policy_file)
    makers = open_to.makers(addresses, policy, shards.cluster())
    gathers = _traced_gatherer() if traces else Gatherer
    with out.progress() as report:
        store = _opened(folder, config, report)
    with store, ServerWorker(store, policy) as worker:
        server = Server(store, makers, gathers, worker)
        asyncio.run(_serve(out, server, store, open_to.access, ends=shards.is_supervised))
        _log.info("drained; closing the store")
    _log.info("closed")


def _opened(folder: Path, config: StoreConfig, progress: Progress) -> kvstore.Store:
    """The store; `StoreLocked` says what to do before it can be served."""
    try:
        return kvstore.open(folder, config, progress=progress)
    except StoreLocked as e:
        holder, _, _ = str(e).partition("; ")
        if isinstance(e, StoreServed):
            why = f" at {e.url}, and a store has one server: connect to that server, or end it"
        else:
            why = ", which must close it"
        e.args = (f"{holder}{why} first",)
        raise


def _traced_gatherer() -> Gathers:
    try:
        from kvstore.serve.traced_gatherer import TracedGatherer
    except ModuleNotFoundError as e:
        raise CallerError(
            f"--traces takes {e.name}, which is not installed: pip install 'kvmq[otel]'"
        ) from e
    return TracedGatherer


async def _serve(
    out: Output, server: Server, store: kvstore.Store, access: AccessControl, *, ends: bool
) -> None:
    """Serves until a signal comes, or, with `ends`, until standard input ends."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        on_signal(loop, number, partial(_stop, server, store, number))
    on_signal(loop, signal.SIGHUP, partial(_read_again, access))
    if ends:
        loop.add_reader(sys.stdin.fileno(), _orphaned, loop, server, store)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 100)
    keep_freed(_FREED, _LARGE)
    await server.run(partial(_ready, out, store))


def _stop(server: Server, store: kvstore.Store, number: int) -> None:
    _log.info("%s: draining", signal.Signals(number).name)
    end_within(_END_WITHIN, store._is_safe)
    server.stop()


def _orphaned(loop: asyncio.AbstractEventLoop, server: Server, store: kvstore.Store) -> None:
    loop.remove_reader(sys.stdin.fileno())
    _log.error("the supervisor has ended: draining")
    end_within(_END_WITHIN, store._is_safe)
    server.stop()


def _read_again(access: AccessControl) -> None:
    if not access.has_credentials:
        _log.info("SIGHUP: this server has no file of credentials to read again")
        return
    try:
        access.reload()
    except ConfigError as e:
        _log.error("SIGHUP: the credentials stay as they were: %s", str(e))
    else:
        _log.info("SIGHUP: the credentials were read again")


def _ready(out: Output, store: kvstore.Store, door: Door) -> None:
    if out.json:
        out.line({"door": door.name, "url": door.url, "pid": os.getpid()})
    else:
        out.text(f"{store.path} is served by the {door.name} at {door.url}")
    sys.stdout.flush()


def _shard_ready(out: Output, shard: str, said: Mapping[str, Any]) -> None:
    if out.json:
        out.line({"shard": shard, **said})
    else:
        out.text(f"{shard} is served by the {said.get('door')} at {said['url']}")
    sys.stdout.flush()


def _log_to_stderr(log_format: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        _JsonFormatter()
        if log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logger = logging.getLogger("kvmq")
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _lessen_buffers() -> None:
    """asyncio gives each connection of TLS a buffer for what comes, of 256 KiB; a read of a record,
    16 KiB at most, needs no more than this.
    """
    SSLProtocol.max_size = _TLS_BUFFER


def _allow_many_files() -> None:
    """Each connection takes a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
