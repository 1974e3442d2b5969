"""Verbs about topics, groups, namespaces and whole stores."""
