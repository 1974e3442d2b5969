"""The sink: `df.write.format("kvmq")` makes archives.

Begin with `sink_writer`.

- `frame_columns`: a frame's columns, checked, in the types that records are made of.
- `property_maps`: the properties of records, from columns.
- `row_records`: columns -> records, byte for byte as a store has them.
- `archives`: a task's records, sorted -> archives in a place.
- `jobs`: the state of a place that a job has to know; commit, abort, leftovers.
- `sink_writer`: the writers that Spark calls.

Not in here: how commits lie in a place, which is `places.commits`. May import the modules of
`spark` and the rooms below `spark`.
"""
