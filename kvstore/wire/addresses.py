"""The URLs of served stores: `kvmq+unix:///run/kvmq.sock`, and `kvmq://host:port`.

Invariant: an `Address` is one that a socket can be made for, and its `url` reads as the same one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from os import fsencode
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from kvstore.errors import CallerError, shown

UNIX: Final = "kvmq+unix"
TCP: Final = "kvmq"
SOCKET: Final = "kvmq.sock"
"""The name of a store's socket in its folder."""
_PATH_MAX: Final = 107
"""Bytes of a socket's path that Linux takes."""


class Address(NamedTuple):
    """Where a store is served: the path of a socket, or host and port."""

    path: Path | None
    host: str = ""
    port: int = 0

    @property
    def url(self) -> str:
        """The address as it is written."""
        if self.path is not None:
            return f"{UNIX}://{quote(str(self.path))}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TCP}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_address(url: str | Path) -> Address:
    """The address that a URL means, or the socket of the store in a folder; `CallerError`."""
    if isinstance(url, Path):
        return socket_of(url)
    if not isinstance(url, str):
        raise CallerError(f"the URL is {shown(url)}; it must be like {TCP}://host:port")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise CallerError(f"{shown(url)} is no URL of a served store: {e}") from None
    if parts.scheme == UNIX and not parts.netloc and parts.path:
        return _unix(Path(unquote(parts.path)))
    if parts.scheme == TCP and parts.hostname and port is not None and not parts.path.strip("/"):
        return Address(None, parts.hostname, port)
    if not parts.scheme and url:
        return socket_of(Path(url))
    raise CallerError(
        f"{shown(url)} is no URL of a served store; it must be like {UNIX}:///path/{SOCKET} or "
        f"{TCP}://host:port, or the folder of a store"
    )


def socket_of(folder: Path) -> Address:
    """The socket in a store's folder."""
    return _unix(folder.expanduser().absolute() / SOCKET)


def _unix(path: Path) -> Address:
    if "\0" in str(path):
        raise CallerError(f"the path {shown(str(path))} can't be a socket's")
    return Address(path)


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket's path that is short enough for the system, for the time of the block."""
    if len(fsencode(path)) <= _PATH_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
