"""Access: who may call a served store, for which topics and groups, and how much at once.

In here: the file of credentials, tokens and signatures, rights, limits, TLS settings, and the rule
that nothing listens beyond loopback without credentials and TLS. Not in here: the doors, which ask
before each call; and any state of a store. Begin with `access_control`. May import `files` and the
rooms below it.
"""
