"""The URLs of served stores: `kvmq+unix:///run/kvmq.sock`, `kvmq://host:port`, `kvmq+tls://…`.

Invariants: an `Address` is one that a socket can be made for, and its `url` reads as the same one;
a URL's credentials are in no `Address` and in no error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from os import fsencode
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from kvstore.errors import CallerError, shown
from kvstore.wire.proof import Proof, read_proof

UNIX: Final = "kvmq+unix"
TCP: Final = "kvmq"
TLS: Final = "kvmq+tls"
SOCKET: Final = "kvmq.sock"
"""The name of a store's socket in its folder."""
_PATH_MAX: Final = 107
"""Bytes of a socket's path that Linux takes."""
_HIDDEN: Final = re.compile(r"(?s)^([\w+]*:/*)?.*@")
"""A URL up to the last sign behind which no credentials can be."""


class Address(NamedTuple):
    """Where a store is served: the path of a socket, or host and port, of TLS or plain."""

    path: Path | None
    host: str = ""
    port: int = 0
    is_tls: bool = False

    @property
    def url(self) -> str:
        """The address as it is written."""
        if self.path is not None:
            return f"{UNIX}://{quote(str(self.path))}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TLS if self.is_tls else TCP}://{host}:{self.port}"

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
    """The address that a URL means, or the socket of the store in a folder; `CallerError`, also for
    a URL with credentials.
    """
    address, proof = read_url(url)
    if proof is not None:
        raise CallerError(f"{without_credentials(url)} has credentials, which do not belong there")
    return address


def read_url(url: str | Path) -> tuple[Address, Proof | None]:
    """The address that a URL means, or the socket of the store in a folder, and the credentials in
    the URL, `TOKEN@` or `ACCESS_KEY:SECRET@` in front of the host; `CallerError`.
    """
    if isinstance(url, Path):
        return socket_of(url), None
    if not isinstance(url, str):
        raise CallerError(f"the URL is {shown(url)}; it must be like {TCP}://host:port")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # Its text may quote the credentials.
        raise _no_url(url) from None
    if parts.scheme in (UNIX, TCP, TLS) and (parts.query or parts.fragment):
        raise CallerError(
            "the URL goes on behind its host or path with `?` or `#` (not shown here), which mean "
            "nothing; credentials stand in front of the host: TOKEN@ or ACCESS_KEY:SECRET@"
        )
    if parts.scheme == UNIX and not parts.netloc and parts.path:
        return _unix(Path(unquote(parts.path))), None
    is_tcp = parts.scheme in (TCP, TLS) and not parts.path.strip("/")
    if is_tcp and parts.hostname and port is not None:
        proof = None
        if parts.username is not None:
            name, secret = unquote(parts.username), parts.password
            proof = read_proof(name if secret is None else (name, unquote(secret)))
        return Address(None, parts.hostname, port, parts.scheme == TLS), proof
    if not parts.scheme and url:
        return socket_of(Path(url)), None
    raise _no_url(url)


def _no_url(url: str) -> CallerError:
    return CallerError(
        f"{shown(without_credentials(url))} is no URL of a served store; it must be like "
        f"{UNIX}:///path/{SOCKET}, {TCP}://host:port or {TLS}://host:port, or the folder of a store"
    )


def without_credentials(url: str | Path) -> str:
    """A text that may be a URL with credentials, without them."""
    return _HIDDEN.sub(r"\1", str(url))


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
