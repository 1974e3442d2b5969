"""The commit log: segments, append, flush, staging, recovery scan."""
