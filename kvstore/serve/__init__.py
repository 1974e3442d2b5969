"""The server: one process that has the store open, and serves it to others.

In here: HTTP/2 and gRPC calls (`http2`). Not in here: the calls themselves (`api`). Begin with
`http2`. May import `api` and the rooms below it.
"""
