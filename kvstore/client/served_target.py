"""The target of a connection: where a store is served, how it is reached, and the client's proof.

Invariant: a proof never leaves the machine in plain text.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from kvstore.client.tls_socket import TlsSocket
from kvstore.errors import CallerError, ConnectionLost, StoreClosed, shown
from kvstore.files import local_path
from kvstore.opening.store_folder import served_url
from kvstore.wire.addresses import TCP, TLS, UNIX, Address, reachable, read_address, read_url
from kvstore.wire.proof import Proof, read_proof

CONNECT_WITHIN: Final = 10.0
"""Seconds for a connection with its welcome."""
NO_ANSWER: Final = (TimeoutError, BlockingIOError)
"""Errors of a server that may be there: it is slow, or too many wait to be let in."""

Credentials = str | tuple[str, str] | Proof
"""A token, or an access key and its secret."""
Tls = ssl.SSLContext | str | Path
"""TLS settings, or the file (PEM) with the certificates that are trusted."""


class Target(NamedTuple):
    """See the module."""

    address: Address
    proof: Proof | None = None
    tls: ssl.SSLContext | None = None

    def open(self) -> socket.socket | TlsSocket:
        """A connected socket, with a limit on its waits; OSError."""
        address = self.address
        if address.path is not None:
            return _open_unix(address.path)
        raw = socket.create_connection((address.host, address.port), CONNECT_WITHIN)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return raw if self.tls is None else TlsSocket(raw, self.tls, address.host)
        except BaseException:
            raw.close()
            raise


def read_target(url: str | Path, credentials: Credentials | None, tls: Tls | None) -> Target:
    """The target of the arguments of `kvstore.connect`; `CallerError`."""
    address, proof = read_url(url)
    address = _where_served(url, address)
    if credentials is not None:
        if proof is not None:
            raise CallerError(f"{address.url} has credentials in its URL and beside it; give one")
        proof = read_proof(credentials)
    if proof is not None and not address.is_tls and not address.is_loopback:
        raise CallerError(
            f"the credentials for {address.url} could be read on their way there; use {TLS}://"
        )
    if address.is_tls:
        return Target(address, proof, _context(tls))
    if tls is not None:
        raise CallerError(f"{address.url} has no TLS, and tls is given; use {TLS}://host:port")
    return Target(address, proof)


def _where_served(url: str | Path, address: Address) -> Address:
    """The address that the lock of a folder names, if there is no socket in the folder."""
    if address.path is None or str(url).startswith(f"{UNIX}:") or address.path.is_socket():
        return address
    said = served_url(address.path.parent)
    return read_address(said) if said.startswith((f"{TCP}:", f"{TLS}:", f"{UNIX}:")) else address


def _context(tls: Tls | None) -> ssl.SSLContext:
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        if tls is None:
            found = ssl.create_default_context()
        else:
            found = ssl.create_default_context(cafile=local_path(tls, "a file of certificates"))
    except OSError as e:
        raise CallerError(f"tls is {shown(tls)}, which has no certificates: {e.strerror}") from None
    found.minimum_version = ssl.TLSVersion.TLSv1_2
    return found


def _open_unix(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(CONNECT_WITHIN)
        with reachable(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def closed(url: str) -> StoreClosed:
    """The error that the caller has closed the connection to a URL."""
    return StoreClosed(f"the connection to {url} was closed; connect again")


def unreachable(address: Address, why: OSError) -> ConnectionLost:
    """The error that nobody serves at an address, or that the server gives no answer."""
    if isinstance(why, ssl.SSLError):
        return ConnectionLost(
            f"there is no TLS with {address.url} ({why.reason or why.strerror}): `tls=` names the "
            "certificates to trust, and the URL a name that the server's certificate has"
        )
    if isinstance(why, NO_ANSWER):
        return ConnectionLost(
            f"the server at {address.url} did not answer in time; it may be busy, or out of reach: "
            "try again"
        )
    return ConnectionLost(
        f"there is no served store at {address.url}: {why.strerror or why}; start one with "
        "`kvmq serve DIR`"
    )
