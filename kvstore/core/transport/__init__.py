"""Transport: the part of the core for HTTP/2 and gRPC, compiled.

In here: header blocks (`hpack`); frames, and the head of a request (`h2_frames`). The promises are
those of `kvstore.core`. Not in here: connections, streams and windows (`serve.http2`). Begin with
`h2_frames`. May import `core` and `errors`.
"""

from __future__ import annotations

from kvstore.core.unzipped import importable

with importable(__name__):
    from kvstore.core.transport import h2_frames, hpack  # noqa: F401
