"""The server: one process that has the store open, and serves it to others.

In here: the `gatherer`, which makes the calls of all doors together, by `lanes`, and the one with
spans (`traced_gatherer`); the `server`, which starts and stops doors; and the door of the local
protocol (`local_door`). In rooms of their own: calls of gRPC over HTTP/2 (`http2`), the door for
RocketMQ's clients (`grpc`), who may call (`access`), how much of replies is held (`replies`), what
Prometheus is told (`metrics`), and the HTTP door with the admin page (`http`). Not in here: the
calls themselves (`api`), and the protocol's frames and values (`wire`). Begin with `gatherer`, then
`door` and `server`. May import `sharding`, `tracing`, `wire` and the rooms below it.
"""
