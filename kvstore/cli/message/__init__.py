"""Message: verbs that put, read, pop, ack, find, erase and dump messages.

One module a verb; `dump` has three, since it reads files without a store. Begin with `put` and
`pop`. May import `cli.terminal`, and every room that `cli` may.
"""
