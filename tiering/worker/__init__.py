"""Worker: the steps of a run. Segments become archives; archives are relocated, replaced, deleted.

In here: the parts that all steps share (`context`), snapshots of the store (`store_snapshot`), the
agenda run in order (`run_due`), each kind of step, the check of all archives (`audit`), and the
history (`runs`). Not in here: the class that callers have
(`operations.worker`), and the decisions what is due (`policy`). Begin with `run_due`, then
`archive_segment`, `relocate` and `replace`. May import `merge`, `executor`, `policy` and the rooms
below them.
"""
