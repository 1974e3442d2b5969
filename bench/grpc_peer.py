"""RocketMQ's proxy in local mode, as a server that is measured: with the topic "t" in a folder of
its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.grpc_clients import METADATA
from bench.grpc_connection import GrpcConnection
from bench.rocketmq_broker import Ports, free_ports, rocketmq_proxy, settings_text
from bench.served import Server
from kvstore.serve.grpc.protocol.protocol_tables import MESSAGING
from kvstore.serve.grpc.protocol.wire import message_class

_MIB: Final = 2048
_SIMPLE_CONSUMER: Final = 3


@contextmanager
def rocketmq(folder: Path) -> Iterator[Server]:
    """The proxy, ready; RuntimeError if Maven can't bring it."""
    ports = free_ports()
    with rocketmq_proxy(folder, _configured(folder, ports), ports, _MIB) as proxy:
        server = Server(proxy.pid, ports.grpc)
        asyncio.run(_say_settings(server))
        yield server


def _configured(folder: Path, ports: Ports) -> Path:
    """The `broker.conf`; the topic is in the broker's configuration."""
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "autoCreateSubscriptionGroup": "true",
        **ports.of_cluster,
    }
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
    conf = folder / "broker.conf"
    conf.write_text(settings_text(settings))
    return conf


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
