"""The cluster file: the list of the shards of a cluster, and where each is served.

The idea: a file of TOML, written by `kvmq serve --shards` or by hand (docs/sharding.md). The place
of a shard in the list is its number, by which queues are on shards; its name is in routes and
receipts.

Invariant: a `Cluster` that exists has a shard at least, and no two of a name.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from kvstore.errors import CallerError, ConfigError, shown
from kvstore.files import LocalFiles
from kvstore.opening.store_folder import CLUSTER_FILE
from kvstore.wire.addresses import read_url

_PREFIX: Final = "kvmq+cluster://"
"""The URL of a cluster file begins with it; its path follows."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
SHARDS_MAX: Final = 256
_FILE_BYTES_MAX: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_GRPC: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):([0-9]{1,5})")


class ShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard as the list has it: its name, its URL of the local protocol, and HOST:PORT of its
    door for RocketMQ's clients; each empty if it has none.
    """

    name: str
    url: str = ""
    grpc: str = ""

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """The address for RocketMQ's clients."""
        if not self.grpc:
            return None
        host, _, port = self.grpc.rpartition(":")
        return host.strip("[]"), int(port)


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shards, in the order of their numbers."""

    shards: list[ShardEntry]

    def __post_init__(self) -> None:
        names = [shard.name for shard in self.shards]
        if not 1 <= len(names) <= SHARDS_MAX:
            raise ConfigError(f"there are {len(names)} shards; there must be 1 to {SHARDS_MAX}")
        if len(set(names)) < len(names):
            raise ConfigError(f"two of the shards {shown(names)} have one name")
        for shard in self.shards:
            _check(shard)

    def named(self, name: str) -> ShardEntry:
        """The shard of a name; `ConfigError`."""
        for shard in self.shards:
            if shard.name == name:
                return shard
        names = ", ".join(shard.name for shard in self.shards)
        raise ConfigError(f"there is no shard {shown(name)} in the cluster; there are {names}")

    def urls(self) -> list[str]:
        """Where each shard is served by the local protocol; `CallerError`."""
        for shard in self.shards:
            if not shard.url:
                raise CallerError(
                    f"the shard {shard.name} has no url in the cluster file; give it one, or use "
                    "a client of RocketMQ"
                )
        return [shard.url for shard in self.shards]

    def text(self) -> str:
        """The list as a file has it."""
        lines: list[str] = []
        for shard in self.shards:
            lines.append("[[shards]]")
            for name in shard.__struct_fields__:
                value: str = getattr(shard, name)
                if value:
                    # A text of JSON is one of TOML.
                    lines.append(f"{name} = {msgspec.json.encode(value).decode()}")
            lines.append("")
        return "\n".join(lines)


def _check(shard: ShardEntry) -> None:
    if not _NAME.fullmatch(shard.name):
        raise ConfigError(
            f"a shard is called {shown(shard.name)}; a name has 1 to 64 letters, digits, '.', '_' "
            "and '-'"
        )
    found = _GRPC.fullmatch(shard.grpc)
    if shard.grpc and (found is None or not 0 < int(found[2]) < 1 << 16):
        raise ConfigError(
            f"grpc of the shard {shard.name} is {shown(shard.grpc)}; it must be HOST:PORT"
        )


def read_cluster(path: Path) -> Cluster:
    """The cluster that a file lists; `ConfigError`, with the file's name."""
    try:
        data = LocalFiles().read(path, 0, _FILE_BYTES_MAX)
        return msgspec.convert(tomllib.loads(data.decode()), Cluster)
    except OSError as e:
        raise ConfigError(f"the cluster file {path} can't be read: {e.strerror or e}") from e
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as e:
        raise ConfigError(f"the cluster file {path}: {e}") from None


def cluster_url(path: Path) -> str:
    """The URL of a cluster file."""
    return f"{_PREFIX}{quote(str(path.absolute()))}"


def cluster_of(url: object) -> tuple[Cluster, str] | None:
    """The cluster that a URL, a path or a list of URLs means, with a URL for people; None if it is
    one server's. `ConfigError`, `CallerError`.
    """
    if isinstance(url, list | tuple):
        if not url:
            raise CallerError("the list of URLs is empty; give one for each shard")
        addresses = [read_url(one)[0] for one in url]
        # A URL may have credentials, which are not for people.
        shards = [
            ShardEntry(str(n), one if isinstance(one, str) and _SCHEME.match(one) else address.url)
            for n, (one, address) in enumerate(zip(url, addresses, strict=True))
        ]
        return Cluster(shards), ", ".join(address.url for address in addresses)
    path = _path_of(url)
    return None if path is None else (read_cluster(path), cluster_url(path))


def _path_of(url: object) -> Path | None:
    if not isinstance(url, str | Path) or "\0" in str(url):
        return None
    if isinstance(url, str) and url.startswith(_PREFIX):
        return Path(unquote(url.removeprefix(_PREFIX)))
    if isinstance(url, str) and _SCHEME.match(url):
        return None
    path = Path(url).expanduser()
    if path.suffix == ".toml":
        return path
    return path / CLUSTER_FILE if (path / CLUSTER_FILE).is_file() else None
