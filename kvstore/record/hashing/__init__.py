"""Hashing: hashes of keys, tags and topics, and the filter of hashes that index and archives share.

Begin with `hashes`; `hash_many` gives the same hashes for many texts at once, `key_filter` is the
Bloom filter. May import `errors`, `record.names` and codecs.
"""
