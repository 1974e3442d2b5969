"""RocketMQ's own broker, proxy and name server, from Maven Central, as processes.

The idea: the proxy in local mode has a broker inside, which goes by a `broker.conf` that is given,
and asks a name server for routes; both run on ports of their own. The jars go below
bench/peers/.cache, which git ignores, and are brought once.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.served import ending

_HERE: Final = Path(__file__).resolve().parent / "peers"
_POM: Final = _HERE / "rocketmq_proxy" / "pom.xml"
_JARS: Final = _HERE / ".cache" / "rocketmq_proxy"
_STARTS: Final = 120.0
"""Seconds that it may take to start."""
_NAMES: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
_PROXY: Final = "org.apache.rocketmq.proxy.ProxyStartup"
_NAMES_MIB: Final = 256


class Ports(NamedTuple):
    """The ports of loopback at which each part listens; clients go to `grpc`."""

    names: int
    broker: int
    replicas: int
    grpc: int
    remoting: int

    @property
    def of_cluster(self) -> dict[str, object]:
        """The settings of a `broker.conf` that say where the broker is, and its name server."""
        return {
            "listenPort": self.broker,
            "haListenPort": self.replicas,
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": f"127.0.0.1:{self.names}",
        }


def free_ports() -> Ports:
    """Ports that nobody uses now."""
    with ExitStack() as held:
        doors = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in Ports._fields]
        return Ports(*(one.getsockname()[1] for one in doors))


def settings_text(settings: Mapping[str, object]) -> str:
    """Settings as lines of a `broker.conf`."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def rocketmq_jars() -> Path:
    """The folder with the jars; RuntimeError if Maven can't bring them."""
    _JARS.parent.mkdir(parents=True, exist_ok=True)
    with _JARS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _JARS.exists():
            _bring(_JARS.with_suffix(".new"))
            _JARS.with_suffix(".new").rename(_JARS)
    return _JARS


def _bring(folder: Path) -> None:
    if not (shutil.which("mvn") and shutil.which("java")):
        raise RuntimeError("there is no Maven, or no Java")
    goal = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}")
    command = ["mvn", "-q", "-B", "-f", str(_POM), *goal]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise RuntimeError("Maven can't bring RocketMQ's broker")


@contextmanager
def rocketmq_proxy(
    home: Path, broker_conf: Path, ports: Ports, mib: int
) -> Iterator[subprocess.Popen[bytes]]:
    """The process of the proxy with its broker, which takes clients; it has `mib` MiB of heap, and
    writes its logs into the folder `home`. RuntimeError if it can't be had, or does not start.
    """
    (home / "conf").mkdir(parents=True, exist_ok=True)
    names_conf, proxy_conf = home / "namesrv.conf", home / "rmq-proxy.json"
    names_conf.write_text(f"listenPort={ports.names}\n")
    proxy = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": f"127.0.0.1:{ports.names}",
        "grpcServerPort": ports.grpc,
        "remotingListenPort": ports.remoting,
        "proxyMode": "local",
    }
    proxy_conf.write_text(json.dumps(proxy))
    given = ("-pm", "local", "-pc", str(proxy_conf), "-bc", str(broker_conf))
    with ExitStack() as started:
        names = started.enter_context(_java(home, _NAMES_MIB, _NAMES, "-c", str(names_conf)))
        _wait_for(_log_of(home, _NAMES), names, ports.names)
        address = f"127.0.0.1:{ports.names}"
        running = started.enter_context(_java(home, mib, _PROXY, *given, "-n", address))
        _wait_for(_log_of(home, _PROXY), running, ports.grpc)
        yield running


@contextmanager
def _java(home: Path, mib: int, program: str, *given: str) -> Iterator[subprocess.Popen[bytes]]:
    command = ["java", f"-Xms{mib}m", f"-Xmx{mib}m", f"-Duser.home={home}"]
    command += ["-cp", f"{home}/conf:{rocketmq_jars()}/*", program, *given]
    with _log_of(home, program).open("wb") as log:
        process = subprocess.Popen(
            command, cwd=home, stdout=log, stderr=log,
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
        )  # fmt: skip
    with ending(process, 60.0):
        yield process


def _log_of(home: Path, program: str) -> Path:
    return home / f"{program}.log"


def _wait_for(log: Path, process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + _STARTS
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    ended = "" if process.poll() is None else f", it ended with {process.returncode}"
    said = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"{log.stem} does not listen at port {port}{ended}: {said}")
