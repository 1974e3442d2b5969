"""Replies: how many bytes of them a server holds for its clients, and which calls wait for room.

In here: calls and their results, as doors see them (`open_calls`); the room of a connection, and
all rooms of a server (`reply_room`); reads that begin when there is room for their replies
(`bounded_reads`). Not in here: the bytes of a reply, and their way to the client (`serve`,
`serve.http2`). Begin with `reply_room`. May import `message`, `process`, `core` and `errors`.
"""
