"""Messages that wait: delayed, of transactions, of schedules.

In here: the rows of messages that wait, their delivery when they are due, cancelling and changing
them, commit, rollback and checks of transactions, and what schedules put. Not in here: popping,
which is `pop`, and making records, which is `core.pending`. Begin with `timers`; `docs/timing.md`
has the format. May import `read`, `meta`, `index` and the rooms below them.
"""
