"""The commit log: one endless run of records in files of fixed size, the segments.

In here: appending, putting on the disk, staging in memory, and reading the log again after a crash.
Not in here: the bytes of a record (`record`), and where a queue's messages are (`index`). Begin
with `commitlog`, then `segments` and `flusher`; `recovery_scan` is recovery's reading half. May
import `record`, `files`, `config` and the rooms below them.
"""
