"""The in-flight tables: a group's lock rows of a topic, in memory, and the pops that wait there.

In here: counters over lock rows, the rows' values, the order of ordered groups, the waiters, and
messages in flight as a list (`listing`). Not in here: choosing messages and writing changes, which
is `pop`. Begin with `table`; `tables` keeps those of a store, `lock_rows` has the rows' values. May
import `index`, `meta`, `read` and the rooms below them.
"""
