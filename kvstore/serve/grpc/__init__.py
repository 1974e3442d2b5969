"""RocketMQ's gRPC door: its 5.x clients use the store as they are.

In here: the services, one module for each group of calls, and their state: clients, their streams,
and the locks that are renewed for them. The room `protocol` has the messages. Not in here: HTTP/2
(`serve.http2`), the store's calls (`api`). Begin with `service_table`, which wires the services,
then `sending` and `receiving`. May import `serve.gatherer`, `serve.http2`, `serve.access`,
`serve.replies`, `sharding`, `api` and the rooms below them.
"""
