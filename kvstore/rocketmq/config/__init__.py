"""RocketMQ's configuration: topics, groups and offsets, read in each of its forms, and written.

Begin with `configuration`.
"""
