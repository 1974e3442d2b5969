"""A served store as Celery's broker: a transport of kombu, `kvmq://HOST:PORT` and `kvmq+unix://PATH`.

In here: the transport, which is registered when this package is imported. Not in here: the client
(`kvstore.connect`), by whose calls it works. Begin with `broker_channel`. May import `kvstore`.

    import kombu_kvmq  # registers the transport
    app = Celery(broker="kvmq+unix:///run/kvmq.sock")
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from kombu_kvmq.broker_channel import BrokerChannel
from kombu_kvmq.transport import Transport

TRANSPORT_ALIASES["kvmq"] = "kombu_kvmq.transport:Transport"

__all__ = ["BrokerChannel", "Transport"]
