"""Look-ups within an archive: by queue and offset, by position, by key.

In here: the payloads of directory, position index and key index, as written and as held in memory.
Not in here: reading them from a file (`archive.archive_reader`). Begin with `directory`, then
`positions` and `key_index`. May import `archive.layout`, `archive.manifest` and `archive.columns`.
"""
