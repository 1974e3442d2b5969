"""Opening: a store's folder, recovery, and each way to make an index from a source.

In here: the folder and its lock, recovery after a crash and the replay of the log behind the
index's end (`replay`), looking at a store from outside. An index is made in one way,
`store_folder.found_index`, of a source: a RocketMQ folder (`adopting`), archives (`restoring`), or
an index that can't be used any more (`rebuild`). Not in here: the calls that open (`api.store`,
`api.founding`). Begin with `store_folder`, then `recovery`. `tiering` imports `restoring` and
`viewing` alone. May import `rocketmq`, `index`, `log`, `meta` and the rooms below them.
"""
