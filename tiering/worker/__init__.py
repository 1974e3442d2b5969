"""Worker: the steps of a run. Segments become archives; archives are relocated, replaced, deleted.

In here: the store as a worker sees it (`store_protocols`, `store_snapshot`), the parts that all
steps share (`context`), the agenda run in order (`run_due`), segments made archives
(`archive_segment`), archives made anew (`rewriting` chooses them, `replace` does it), the check of
all archives (`audit`), and the history (`runs`). Not in here: the class that callers have
(`operations.worker`), and the decisions what is due (`policy`). Begin with `run_due`, then
`archive_segment` and `replace`. May import `merge`, `executor`, `policy` and the rooms below them.
"""
