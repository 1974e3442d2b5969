"""Transport: the part of the core for bytes on a connection, compiled.

In here, for HTTP/2 and gRPC: header blocks (`hpack`); frames, and the head of a request
(`h2_frames`); the call of RocketMQ's by which most messages come, read and answered (`send_calls`).
For the local protocol: the values that most calls carry, written (`local_packing`) and read
(`local_reading`) as MessagePack. The promises are those of `kvstore.core`. Not in here:
connections, streams and windows (`serve.http2`), RocketMQ's other calls (`serve.grpc.protocol`),
all other values of the local protocol (`wire`). Begin with `h2_frames`, or with `local_packing`.
May import `core` and `errors`.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.transport import (  # noqa: F401
        h2_frames,
        hpack,
        local_packing,
        local_reading,
        send_calls,
    )
