"""The checksum of bodies and records; see crc.pyx."""

def crc32(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 of some bytes, as zlib computes it: 32 bits, without a sign."""
