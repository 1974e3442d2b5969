"""The index: where every message stands, by queue, by offset and by key.

In here: the one RocksDB and its families, runs and locations of queues,
checkpoints, the hand-over of segments to archives, and the protocol by which the store reads
archives (`archived`). The room `message_keys` finds messages by key. Not in here: the log itself,
reading messages from it (`log`, `read`), and the index tail (`core.tail`). Begin with `index`, then
`queue_locations`;
`keys` has every layout on disk. May import `config`, `record` and the rooms below them.
"""
