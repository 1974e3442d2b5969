"""Spark: archives and stores as tables.

    spark.read.format("kvmq").load("data").where("topic = 'orders'")

Nothing here is imported unless somebody asks for it; it takes the extra `spark`.
"""
