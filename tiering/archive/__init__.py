"""One archive: its format (docs/archive.md), writing and reading it."""
