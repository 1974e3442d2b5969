"""Terminal: how verbs open stores, read arguments and show results; each verb uses it.

Not in here: any verb. Begin with `opening`, then `output`. May import every room that `cli` may; it
imports no room of verbs.
"""
