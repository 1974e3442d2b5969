"""Admin: verbs about topics, groups, namespaces, offsets and whole stores.

One module a verb, or a group of verbs. Begin with `topic`, which is typical. May import
`cli.terminal`, and every room that `cli` may.
"""
