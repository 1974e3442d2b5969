"""Transport: what kombu asks for a connection of a URL; it connects to a served store.

Invariant: a connection is made when it is first needed, and lives in the process that made it.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import virtual

import kvstore
from kombu_kvmq.broker_channel import BrokerChannel
from kvstore import ConnectionLost, ServedStore
from kvstore.wire.addresses import without_credentials


class Transport(virtual.Transport):
    """See the module."""

    Channel = BrokerChannel
    can_parse_url = True
    driver_type = "kvmq"
    driver_name = "kvmq"
    polling_interval = 0.01
    """Seconds between two looks while the worker has all the tasks that it may have; else a pop
    waits by itself.
    """
    connection_errors: tuple[Any, ...] = (*virtual.Transport.connection_errors, ConnectionLost)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._client = client
        self._store: ServedStore | None = None

    @property
    def store(self) -> ServedStore:
        """The served store."""
        if self._store is None:
            where, prefix = self._client.hostname, self._client.uri_prefix
            self._store = kvstore.connect(f"{prefix}+{where}" if prefix else where)
        return self._store

    def driver_version(self) -> str:
        """The version of kvmq."""
        return kvstore.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL, without the credentials that it may have."""
        return uri if include_password else without_credentials(uri)

    def close_connection(self, connection: Any) -> None:
        """Closes the channels, and the connection."""
        super().close_connection(connection)
        store, self._store = self._store, None
        if store is not None:
            store.close()
