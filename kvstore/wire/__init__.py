"""The local protocol: its frames and values, which a server and its clients share.

In here: frames and their limits (`frames`), values of calls as MessagePack (`values`), errors
(`failures`), the table of calls (`call_table`), the URLs of served stores (`addresses`), the list
of the shards of a cluster (`cluster_file`), and by what a client shows who it is (`proof`). Not in
here: sockets, sessions and what a call does (`client`, `serve`). docs/protocol.md describes all
bytes. Begin with `frames`, then `call_table`. May import `api` and the rooms below it.
"""
