"""Topics, groups, committed offsets and namespaces, as rows of RocksDB.

In here: their settings, their rows, the values that puts and reads need of them in memory, and the
secret by which a store's receipts are made. Not in here: lock rows, which are `pop`, and entries of
messages, which are `index`. Begin with `topics` and `offsets`; `topic` is one topic's values. May
import `index`, `log` and the rooms below them.
"""
