"""Verbs about messages."""
