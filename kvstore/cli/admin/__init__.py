"""Admin: verbs about topics, groups, namespaces, schedules, offsets and whole stores.

One module a subject. Not in here: verbs about messages (`message`) and archives (`tier`). Begin
with `topic_verbs`, which is typical. May import `cli.terminal`, `cli.tier`,
and every room that `cli` may.
"""
