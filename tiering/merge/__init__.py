"""Merging archives into larger ones, and compaction by key.

Begin with `merge`; `partition` cuts a merge into tasks, `partition_task` is one of them. Which
archives are merged is chosen in `worker.choose`.
"""
