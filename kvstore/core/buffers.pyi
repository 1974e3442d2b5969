"""Buffers that compiled functions read from; see buffers.pyx."""

from mmap import mmap  # noqa: TID251 -- its type; kvstore.files does the mapping

Buffer = mmap | bytes | bytearray | memoryview
"""Where records are; a memoryview must be one of single bytes, without gaps."""
