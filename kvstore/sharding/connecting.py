"""Connecting: to one served store, or to the shards of a cluster.

Invariant: a URL that is none is refused before anything is connected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, overload

from kvstore.client.served_calls import Requests
from kvstore.client.served_store import ServedStore
from kvstore.client.served_target import Credentials, Tls, read_target
from kvstore.client.socket_link import SocketLink
from kvstore.clock import SystemClock
from kvstore.errors import CallerError, shown
from kvstore.wire.cluster_file import cluster_of

if TYPE_CHECKING:
    from kvstore.sharding.sharded_store import ShardedStore

RECONNECT_FOR: Final = 30.0
_RECONNECT_MAX: Final = 24 * 3600.0


def check_reconnect(seconds: float) -> float:
    """`CallerError` unless these are seconds that calls may wait for a new connection."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= _RECONNECT_MAX:
        raise CallerError(
            f"reconnect_for is {shown(seconds)}; it must be 0 to {_RECONNECT_MAX:.0f} seconds"
        )
    return seconds


@overload
def connect(
    url: Sequence[str | Path],
    *,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
    reconnect_for: float = RECONNECT_FOR,
) -> ShardedStore: ...
@overload
def connect(
    url: str | Path,
    *,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
    reconnect_for: float = RECONNECT_FOR,
) -> ServedStore: ...
def connect(
    url: str | Path | Sequence[str | Path],
    *,
    credentials: Credentials | None = None,
    tls: Tls | None = None,
    reconnect_for: float = RECONNECT_FOR,
) -> ServedStore:
    """Connects to a store that another process serves (`kvmq serve DIR`): the same calls as those
    of an open store, with the same results and errors.

    `url` is `kvmq+unix:///path/kvmq.sock`, `kvmq://host:port`, `kvmq+tls://host:port`, or the
    served folder: by the socket in it, or else where its lock says. A list of URLs, a cluster file,
    or a folder with shards gives a `ShardedStore` (docs/sharding.md). `credentials` are a token, or
    an access key and its secret; a URL may have them instead, as `TOKEN@` or `ACCESS_KEY:SECRET@`
    in front of the host. `tls` is an `ssl.SSLContext`, or the file (PEM) with the certificates to
    trust, instead of the system's.

    A connection that breaks is made again by itself; calls wait for that for up to `reconnect_for`
    seconds, and none is made twice (docs/serve.md). Raises `ConnectionLost` if nobody serves there,
    `NotAuthenticated`, `ProtocolMismatch`, and `CallerError` for a URL that is none.

    >>> import kvstore
    >>> with kvstore.connect("data") as store:  # doctest: +SKIP
    ...     store.put("orders", b"...")
    """
    seconds, found = check_reconnect(reconnect_for), cluster_of(url)
    if found is not None:
        # Who has no shards doesn't wait for asyncio.
        from kvstore.sharding.sharded_store import OwnLoop, ShardedStore  # noqa: PLC0415  # see above
        from kvstore.sharding.shards import Shards  # noqa: PLC0415  # see above

        return ShardedStore(OwnLoop(partial(Shards, *found, seconds, credentials, tls)))
    target, clock = read_target(url, credentials, tls), SystemClock()  # type: ignore[arg-type]  # no list
    link = SocketLink(target, clock, seconds)
    return ServedStore(link, Requests(clock), target.address.url)
