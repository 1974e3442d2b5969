"""Sharding: the calls of a store over the shards of a cluster (docs/sharding.md).

In here: the plan of a call over shards (`shard_plan`), the check of a batch before it is sent to
several (`batch_check`), one shard (`shard`), pops over several
(`shard_pops`), all calls (`shards`), the store made of them (`sharded_store`), and `connecting`,
which tells one server from a cluster; and the `supervisor`, which keeps the servers of several
shards running. Not in here: links and the calls of one server (`client`).
Begin with `shards`. May import `client` and the rooms below it.
"""
