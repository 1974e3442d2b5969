"""Hexadecimal ids apart from their text; see hex_ids.pyx."""

def extract_ids(payload: bytes) -> tuple[bytes, bytes] | None:
    """The text, with a mark for each id, and the digits that belong in their places, two a byte.
    None if a payload has no ids, or if one of its bytes would look like a mark. Raises MemoryError.
    """

def restore_ids(text: bytes, digits: bytes, size: int) -> bytes:
    """The payload, which must have `size` bytes. Raises ArchiveDamaged, MemoryError."""
