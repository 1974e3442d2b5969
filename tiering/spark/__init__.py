"""Spark: archives and stores as tables, archives written from frames, and a worker's jobs.

    spark.read.format("kvmq").load("data").where("topic = 'orders'")

In here: reading (`source`, then `splits` for the plan and `part_reader` for a task), the sessions
that verbs start (`session`), and the rooms `stream`, `sink`, `export`, `report` and `jobs`. Not in
here: formats and decisions, which are those of the rooms below. May import every room. Nothing here
is imported unless somebody asks for it; it takes the extra `spark`. Begin with `source`.
"""
