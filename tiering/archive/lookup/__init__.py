"""Look-ups within an archive: by queue and offset, by key, by position."""
