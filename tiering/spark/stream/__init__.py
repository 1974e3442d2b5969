"""Streams: `spark.readStream.format("kvmq")`, from `tiering.spark.source`.

In here: how far a stream has come (`offsets`), what there is for it (`stream_view`), the end of the
next batch and its parts (`batches`). Not in here: reading a part, which is `part_reader`'s, as for
a query. Begin with `reader`. May import the modules of `spark` and the rooms below `spark`.
"""
