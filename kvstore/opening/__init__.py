"""Opening: a store's folder, recovery, and each way to make an index from a log or archives.

In here: the folder and its lock, recovery after a crash, rebuilding, adopting RocketMQ's folders,
restoring from archives, looking at a store from outside. Not in here: the calls that open
(`api.store`, `api.founding`). Begin with `store_folder`, then `recovery`. `engine` and `api` import
these modules. This room may import `rocketmq`, `index`, `log`, `meta` and the rooms below them.
"""
