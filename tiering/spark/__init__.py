"""Spark: archives and stores as tables, archives written from frames, and a worker's jobs.

    spark.read.format("kvmq").load("data").where("topic = 'orders'")

In here: the plan of a query (`splits`), its tasks (`part_reader`), and the sessions that verbs
start (`session`), on which the rooms `source`, `stream`, `sink`, `export`, `report` and `jobs`
stand. Not in here: formats and decisions, which are those of the rooms below. May import every
room. Nothing here is imported unless somebody asks for it; it takes the extra `spark`. Begin with
`source`.
"""
