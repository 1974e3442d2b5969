"""Jobs: the worker's own steps, done by Spark's tasks instead of a process of its own.

In here: the executor on the driver, and what its tasks do. Not in here: the steps themselves, which
are those of `executor` and `merge` in `tiering`. Begin with `executor`. May import `spark.session`
and the rooms below `spark`.
"""
