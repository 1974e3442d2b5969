"""Commits: the archives that jobs have added to a place, all or nothing.

In here: the commits of one store's jobs, their topics' ids, and the removal of dead jobs' archives.
Not in here: the jobs themselves (`spark.sink`). Begin with `commits`, then `commit_log`. May import
`places`.
"""
