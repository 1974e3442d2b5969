"""Popping: a group takes messages, each under a time-limited lock of its own.

In here: taking, acking, giving back, renewing, dead letters, redrive, ordered groups, the figures
of a group. The locks in memory are the room `inflight`. Not in here: reading messages, which is
`read`, and committed offsets, which are `meta`. Begin with `popper`, which wires the parts, then
`pop`, `claimant` and `claim`. May import `read`, `meta`, `index` and the rooms below them.
"""
