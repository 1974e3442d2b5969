"""The index: where every message stands, by queue, by offset and by key.

In here: the one RocksDB and its families, runs and locations of queues, checkpoints, the hand-over
of segments to archives, and the protocol by which the store reads archives (`archived`). The key
index (docs/keys.md) goes from a key to the positions of its messages: `key_lookup` finds them in
parts, `key_parts` has a part's rows, `key_merge` makes one part of several, `dead_keys` removes the
keys of erased segments from parts that others need. Not in here: the log itself, reading messages
from it and comparing their keys (`log`, `read`), and the index tail (`core.tail`). Begin with
`index`, then `queue_locations`; `keys` has every layout on disk. May import `config`, `record` and
the rooms below them.
"""
