"""RocketMQ's configuration: topics, groups and offsets, read in each of its forms, and written.

In here: JSON files, both RocksDB forms, and the translation into kvmq's settings and back. Not in
here: how kvmq keeps them (`meta`). Begin with `configuration`; `configs` translates, `export`
writes. May import `meta`, `record`, `files` and the rooms below them.
"""
