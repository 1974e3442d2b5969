"""Hashes by which messages are found; see hashing.pyx."""

def xxh32(data: bytes) -> int:
    """XXH32 of some bytes, with seed 0."""

def java_hash(text: str) -> int:
    """Java's `String.hashCode`: 31-polynomial over UTF-16 code units, as a signed 32-bit number."""
