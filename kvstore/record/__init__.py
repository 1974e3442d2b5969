"""Bytes <-> messages: RocketMQ's record formats as functions without I/O or state."""
