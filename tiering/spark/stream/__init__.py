"""Streams: `spark.readStream.format("kvmq")`, from `tiering.spark.source`."""
