"""Bytes <-> messages: the record formats of RocketMQ's commit log, as pure functions without I/O or state."""
