"""Hashes of keys, tags and topics, and the filter of hashes that the index and archives share."""
