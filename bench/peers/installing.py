"""The peers' own packages: clients in an environment of their own, a server, Java's classes.

The idea: everything goes below `.cache`, which git ignores; what is there is not made again. A peer
whose parts cannot be had (no Go, no Maven, no redis-server) is left out, and the page says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
CACHE: Final = HERE / ".cache"
NATS: Final = "github.com/nats-io/nats-server/v2@v2.15.2"
JAVA: Final = ("-Xms1g", "-Xmx4g", "-XX:+UseG1GC")
IN_MEMORY: Final = "RocketMQ, files, locks in memory"
_POPS: Final = ("pop_batch", "pop_one", "pop_threads")
_OF_ONE_QUEUE: Final = ("put", "pop_one", "pop_threads")
"""Of a queue without topics, batches, and reading."""


class Runner(NamedTuple):
    """How a peer is run: what comes before WORK FOLDER N, its variables, and its version.

    Without `works` it does all of them.
    """

    command: tuple[str, ...]
    version: str
    environment: dict[str, str] = {}  # noqa: RUF012 # nobody changes it
    works: tuple[str, ...] = ()


def runners() -> dict[str, Runner]:
    """The peers that can be had here, by name; kvmq first."""
    python = environment("peers") / "python"

    def client(name: str) -> tuple[str, ...]:
        return (str(python), "-m", "bench.peers.work", name)

    found = {"kvmq": Runner((sys.executable, "-m", "bench.peers.work", "kvmq"), _commit())}
    if shutil.which("mvn"):
        classes = _rocketmq()
        java = ("java", *JAVA, "-cp", classes, "Peer")
        version = f"{_version_of(classes)}, {_said('java', '--version').splitlines()[0]}"
        found["RocketMQ, files"] = Runner((*java, "files"), version)
        found["RocketMQ, RocksDB"] = Runner((*java, "rocksdb"), version)
        found[IN_MEMORY] = Runner((*java, "memory"), version, works=_POPS)
    if server := _nats():
        version = f"{_said(server, '--version')}, nats-py {_package(python, 'nats-py')}"
        found["NATS JetStream"] = Runner(client("nats"), version, {"NATS_SERVER": server})
    if shutil.which("redis-server"):
        version = _said("redis-server", "--version").partition(" sha=")[0]
        client_version = _package(python, "redis")
        found["Redis Streams"] = Runner(client("redis"), f"{version}, redis-py {client_version}")
    version = _said(str(python), "-c", "import sqlite3; print(sqlite3.sqlite_version)")
    found["SQLite lease table"] = Runner(client("sqlite"), version)
    for name in ("persist-queue", "litequeue"):
        found[name] = Runner(client(name), _package(python, name), works=_OF_ONE_QUEUE)
    return found


def environment(name: str) -> Path:
    """The programs of an environment with the packages of requirements/NAME.txt."""
    programs = CACHE / name / "bin"
    if not programs.exists():
        _run(sys.executable, "-m", "venv", str(programs.parent))
        pip = (str(programs / "python"), "-m", "pip", "install", "--quiet", "--require-hashes")
        _run(*pip, "-r", str(ROOT / f"requirements/{name}.txt"))
    return programs


def _run(*command: str, **variables: str) -> None:
    subprocess.run(command, env={**os.environ, **variables}, check=True, stdout=sys.stderr)


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> str:
    return _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")


def _package(python: Path, name: str) -> str:
    asked = f"from importlib.metadata import version; print(version({name!r}))"
    return _said(str(python), "-c", asked)


def _rocketmq() -> str:
    """The class path, of a program that Maven compiled and what it needs."""
    folder, source = CACHE / "rocketmq", HERE / "rocketmq"
    made = (folder / "target/classes/Peer.class").exists()
    if not made or _texts(source) != _texts(folder / "pom.xml", folder / "src"):
        shutil.rmtree(folder / "target/classes", ignore_errors=True)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        goals = ("compile", "dependency:copy-dependencies")
        _run("mvn", "-q", "-B", "-f", str(folder / "pom.xml"), *goals)
    return f"{folder / 'target/classes'}:{folder / 'target/dependency'}/*"


def _texts(*places: Path) -> list[bytes]:
    """The contents of a program's files, in the order of their names."""
    found = {f for p in places for f in (p, *p.rglob("*")) if f.is_file()}
    return [f.read_bytes() for f in sorted(found, key=lambda f: f.name)]


def _version_of(classes: str) -> str:
    jars = Path(classes.rpartition(":")[2]).parent.glob("rocketmq-store-*.jar")
    return next(jars).stem


def _nats() -> str | None:
    """The path of its server."""
    server = CACHE / "go/nats-server"
    if not server.exists() and shutil.which("go"):
        _run("go", "install", NATS, GOBIN=str(server.parent))
    return str(server) if server.exists() else shutil.which("nats-server")
