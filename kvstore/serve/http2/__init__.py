"""HTTP/2: gRPC calls over TCP or Unix sockets, with TLS or without, on plain asyncio.

In here: calls as handlers see them (`grpc_call`, `grpc_status`); connections (`h2_connection`, and
`h2_sending` for their answers) with their limits (`h2_limits`); the server, which gathers a turn's
calls and answers (`h2_server`). The bytes of frames and headers are `core.transport`'s;
docs/http2.md has the protocol and the limits. Not in here: the meaning of any call. Begin with
`grpc_call`, then `h2_server`. May import `process`, `core` and
`errors`.
"""
