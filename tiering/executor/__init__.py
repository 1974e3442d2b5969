"""The steps that cost processor time, as tasks, and the processes that run them.

Begin with `pool`; `regroup` turns a segment into archives. Spark's executor is `spark.jobs`.
"""
