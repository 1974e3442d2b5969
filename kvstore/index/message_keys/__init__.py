"""Message keys: blocks of (hash, position) pairs, merged into generations (docs/keys.md).

In here: from a key to the positions of its messages. Not in here: comparing the key in a record,
which is the caller's. Begin with `key_lookup`; `key_parts` has the rows, `key_blocks` the bytes;
`key_merge` merges them, `dead_keys` removes the keys of erased segments from parts that other
segments need; keys of deleted topics stay until their segments go. May import `index.keys`,
`index.families`, `index.handover`, `record` and the rooms below them.
"""
