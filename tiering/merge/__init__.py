"""Merge: several archives become one; compacted topics keep the newest message of each key.

In here: the plan of a merge, its tasks, compaction, and writing one archive anew (`rewrite`,
`rebase`). Not in here: the choice of groups for a store (`worker.rewriting`) and the change
in the store (`worker.replace`); nothing here touches a store. Begin with `merge`; `partition` cuts
a merge into tasks, `partition_task` is one of them. May import `executor` and the rooms below it.
"""
