"""The sink: `df.write.format("kvmq")` makes archives.

- `options`: what a writer is told.
- `columns`: a frame's columns, checked, in the types that records are made of.
- `properties`: the properties of records, from columns.
- `records`: columns -> records, byte for byte as a store has them.
- `collecting`: a task's records, sorted; on its disk if they are many.
- `archives`: sorted records -> archives in a place.
- `jobs`: what of a place a job has to know; commit, abort, leftovers.
- `writer`: what Spark talks to.
"""
