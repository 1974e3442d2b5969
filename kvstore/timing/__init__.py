"""Messages in time: those that are delivered later.

In here: the rows of delayed messages, their delivery when they are due, cancelling and changing
them. Not in here: popping, which is `pop`, and making records, which is `core.pending`. Begin with
`timers`; `docs/timing.md` has the format. May import `read`, `meta`, `index` and the rooms below
them.
"""
