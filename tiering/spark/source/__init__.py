"""Source: `spark.read.format("kvmq")`, and the same name for streams and for writing.

In here: the class that Spark registers (`data_source`) and the reader of queries (`query_reader`).
Not in here: the list of archives, the plan and the reading of a part, which streams share
(`spark.listing`, `spark.splits`, `spark.part_reader`). Begin with `data_source`. May import the
modules of `spark`, `spark.stream`, `spark.sink`, and the rooms below `spark`.
"""
