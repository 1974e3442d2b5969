"""Replies: how many bytes of them a server holds for its clients, and which calls wait for room.

In here: the room of a connection, and the place of all rooms in a server (`reply_room`); reads that
begin when there is room for their replies (`bounded_reads`). Not in here: the bytes of a reply, and
their way to the client (`serve`, `serve.http2`). Begin with `reply_room`. May import
`serve.open_calls` and the rooms that `serve` may.
"""
