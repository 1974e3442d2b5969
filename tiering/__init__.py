"""Tiering: sealed segments as compact archives that read like the store."""
