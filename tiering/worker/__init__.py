"""The steps of a worker: segments become archives; archives are relocated, replaced and deleted.

Begin with `run_due`, then `archive_segment`, `relocate` and `replace`. What a caller has is
`operations.worker`. May import `merge`, `executor`, `policy` and the rooms below them.
"""
