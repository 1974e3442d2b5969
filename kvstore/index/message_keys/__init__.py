"""Message keys: blocks of (hash, position) pairs, merged into generations (docs/keys.md).

Begin with `key_lookup`; `key_parts` has the rows, `key_merge` and `key_upkeep` merge them.
"""
