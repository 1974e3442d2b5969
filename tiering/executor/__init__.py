"""Executor: the steps that cost processor time, as tasks, and the process that runs them.

In here: a segment's archives (`segment_encoder`), the messages that an erasure means
(`erasure_predicate`); the process (`pool`); the limit of the worker's reads and uploads
(`rate_limit`). Not in here: merges, which are the room `merge`; Spark's executor, which is
`spark.jobs`. Nothing here touches a store. Begin with `pool`, then `segment_encoder`. May import
`places` and the rooms below it; any room above may import this one.
"""
