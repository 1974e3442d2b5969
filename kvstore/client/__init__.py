"""The client of a served store: the store's calls, over a socket.

In here: the place and the proof of a connection (`served_target`), what a client keeps of its
session (`exchange`), when it tries to reach its server again (`reconnecting`), the connections of
threads and of asyncio (`socket_link`, `loop_link`), and the calls (`served_store`). Not in here:
the frames and values, which the server needs as well (`wire`), the same calls over several servers
(`sharding`), and `kvstore.aio`, which has these calls to be awaited. Begin with `served_store`,
then `exchange`. May import `wire` and the rooms below it.
"""
