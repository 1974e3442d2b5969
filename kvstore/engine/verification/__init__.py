"""Verification: holds the index against the log and the archives, and lists what is wrong.

In here: the walk through all segments (`verify`), and the rows of messages that wait
(`verify_waits`). Not in here: mending, which is `opening.rebuild`. Begin with `verify`. May import
the modules of `engine`, and every room that `engine` may.
"""
