"""Hashes by which messages are found; see hashing.pyx."""

def xxh32(data: bytes) -> int:
    """XXH32 of some bytes, with seed 0."""
