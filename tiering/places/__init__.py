"""Places: folders and object stores that keep archives, and putting an archive into one.

In here: the seam `Place` and its two kinds, settings and errors of places, retries, and publishing
an object: announced before it is put, read back after. `work_folder` is the worker's folder in a
store; `commits` and `dead_jobs` are the archives that Spark's jobs add to a place. Not in here: the
bytes of an archive (`archive`), which archives a store has (`catalog`), and the jobs themselves
(`spark.sink`). Begin with `place`, then `local` and `object_store`; `publish` is the way of a new
archive. May import `archive` and the rooms below it.
"""
