"""Membership: a server's name in a cluster, and how it connects to the other shards."""

from __future__ import annotations

from typing import NamedTuple

from kvstore.client.served_target import Credentials, Tls
from kvstore.wire.cluster_file import Cluster


class Membership(NamedTuple):
    """See the module. `credentials` and `tls` are as for `kvstore.connect`."""

    cluster: Cluster
    own: str
    credentials: Credentials | None = None
    tls: Tls | None = None
