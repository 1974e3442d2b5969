"""The protocol: RocketMQ's gRPC messages as classes, and the store's values as such messages.

In here: the tables of names and numbers, the classes made of them, status codes for errors, and
messages on their way in and out. Not in here: calls, clients and the store (`serve.grpc`). Begin
with `protocol_tables` and `wire`. May import `meta`, `core` and the rooms below them.
"""
