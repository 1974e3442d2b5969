"""Commits: what jobs have added to a place, all or nothing."""
