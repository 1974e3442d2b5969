"""RocketMQ's proxy in local mode, from Maven Central, as a server that is measured.

The idea: the proxy has a broker inside, and asks a name server for routes; both run on ports of
their own, in a temporary folder, with the topic "t" in the broker's configuration. The jars go
below bench/peers/.cache, which git ignores, and are brought once.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.grpc_clients import METADATA, Server
from bench.grpc_connection import GrpcConnection
from kvstore.serve.grpc.protocol.protocol_tables import MESSAGING
from kvstore.serve.grpc.protocol.wire import message_class

_HERE: Final = Path(__file__).resolve().parent / "peers"
_POM: Final = _HERE / "rocketmq_proxy" / "pom.xml"
_JARS: Final = _HERE / ".cache" / "rocketmq_proxy"
_STARTS: Final = 120.0
"""Seconds that it may take to start."""
_NAMES: Final = ("-Xms256m", "-Xmx256m"), "org.apache.rocketmq.namesrv.NamesrvStartup"
_PROXY: Final = ("-Xms2g", "-Xmx2g"), "org.apache.rocketmq.proxy.ProxyStartup"
_SIMPLE_CONSUMER: Final = 3


@contextmanager
def rocketmq(folder: Path) -> Iterator[Server]:
    """The proxy, ready; RuntimeError if Maven can't bring it."""
    names, broker, grpc, remoting = _free_ports(4)
    _configure(folder, names, broker, grpc, remoting)
    address = f"127.0.0.1:{names}"
    with ExitStack() as started:
        started.enter_context(_java(folder, *_NAMES, "-c", "namesrv.conf"))
        _wait_for(names)
        proxy = started.enter_context(
            _java(
                folder, *_PROXY, "-pm", "local", "-pc", "rmq-proxy.json", "-bc", "broker.conf",
                "-n", address, names=address,
            )
        )  # fmt: skip
        _wait_for(grpc)
        server = Server(grpc, proxy.pid)
        asyncio.run(_say_settings(server))
        yield server


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        found = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]


def _configure(folder: Path, names: int, broker: int, grpc: int, remoting: int) -> None:
    (folder / "conf").mkdir(parents=True)
    (folder / "namesrv.conf").write_text(f"listenPort={names}\n")
    proxy = {
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": grpc,
        "remotingListenPort": remoting,
        "proxyMode": "local",
    }
    (folder / "rmq-proxy.json").write_text(json.dumps(proxy))
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "listenPort": broker,
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "autoCreateSubscriptionGroup": "true",
    }
    lines = (f"{name}={value}\n" for name, value in settings.items())
    (folder / "broker.conf").write_text("".join(lines))
    topic = {
        "topicName": "t",
        "readQueueNums": 8,
        "writeQueueNums": 8,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "attributes": {"message.type": "NORMAL"},
    }
    table = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": {"t": topic}}
    (folder / "store" / "config").mkdir(parents=True)
    (folder / "store" / "config" / "topics.json").write_text(json.dumps(table))


@contextmanager
def _java(
    folder: Path, memory: tuple[str, ...], program: str, *given: str, names: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    command = ["java", *memory, f"-Duser.home={folder}", f"-Drocketmq.namesrv.addr={names}"]
    command += ["-cp", f"{folder}/conf:{_jars()}/*", program, *given]
    with (folder / f"{program}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log,
            env={**os.environ, "ROCKETMQ_HOME": str(folder)},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _jars() -> Path:
    if not _JARS.exists():
        if not (shutil.which("mvn") and shutil.which("java")):
            raise RuntimeError("there is no Maven, or no Java")
        made = _JARS.with_suffix(".new")
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={made}")
        subprocess.run(["mvn", "-q", "-B", "-f", str(_POM), *goal], check=True, stdout=sys.stderr)
        made.rename(_JARS)
    return _JARS


def _wait_for(port: int) -> None:
    until = time.monotonic() + _STARTS
    while time.monotonic() < until:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"nothing listens at port {port} after {_STARTS:.0f} s")


async def _say_settings(server: Server) -> None:
    """The proxy answers a receive only if the client's settings came before."""
    request = message_class("TelemetryCommand")()
    settings = request.settings
    settings.client_type = _SIMPLE_CONSUMER
    settings.subscription.group.name = "g"
    settings.subscription.subscriptions.add().topic.name = "t"
    settings.user_agent.language = 1
    connection = await GrpcConnection.open(server.port, METADATA)
    await connection.call(MESSAGING + "Telemetry", request.SerializeToString())
    connection.close()
