"""Popping: each message under a time-limited lock of its own.

In here: taking, acking, dead letters, redrive, receipts, ordered groups. The locks in memory are
the room `inflight`; reading the messages is `read`. Begin with `popper`, which wires the parts,
then
`pop` and `take`. May import `read`, `meta`, `index` and the rooms below them.
"""
