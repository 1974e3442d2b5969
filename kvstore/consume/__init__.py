"""Consuming: pulls by offset, and which messages a filter lets through."""
