"""Apache RocketMQ's own files: consume queues, index files, checkpoint, and the adoption of a
store.

In here: reading the files that RocketMQ keeps beside its log, describing records for people, and
taking a whole store over, with its topics, groups and offsets (`configuration`), which `export`
writes again. Not in here: the format of a record (`record`), which is RocketMQ's too, and the index
of an adopted store (`opening`). Begin with `source`, then `adopt`; `file_layouts` has every layout.
May import `meta`, `record`, `files` and the rooms below them.
"""
