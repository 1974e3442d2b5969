"""Verbs that try kvmq out: the demo and a small benchmark."""
