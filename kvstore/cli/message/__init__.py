"""Message: verbs that put, read, pop, ack, find and dump messages.

One module a subject; `dump`, which reads files without a store, shows them with `dump_show`. Not in
here: verbs about topics, groups and whole stores (`admin`). Begin with `put_verb` and `pop_verbs`.
May import `cli.terminal`, and every room that `cli` may.
"""
