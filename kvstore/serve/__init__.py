"""The server: one process that has the store open, and serves it to others.

In here: the `gatherer`, which makes the calls of all doors together, by `lanes`, and the protocol
of doors. Not in here: the calls themselves (`api`). Begin with `gatherer`, then `door`. May import
`api` and the rooms below it.
"""
