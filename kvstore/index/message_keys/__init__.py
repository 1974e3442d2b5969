"""Message keys: blocks of (hash, position) pairs, merged into generations (docs/keys.md).

In here: from a key to the positions of its messages. Not in here: comparing the key in a record,
which is the caller's. Begin with `key_lookup`; `key_parts` has the rows, `key_blocks` the bytes;
`key_merge` and `key_upkeep` merge them, `dead_keys` removes the keys of erased segments. May
import `index.keys`, `index.families`, `record` and the rooms below them.
"""
