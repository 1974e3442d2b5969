"""Access: who may call a served store, for which topics and groups, and how much at once.

In here: the file of credentials, tokens and signatures, rights, the right that each call of the
local protocol needs (`call_rights`), limits, TLS settings, and the rule that nothing listens beyond
loopback without credentials and TLS. Not in here: the doors, which ask before each call; and any
state of a store. Begin with `access_control`. May import `wire` and the rooms below it.
"""
