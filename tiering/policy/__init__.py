"""The policy: retention classes, the schedule, trusted time, prices and plans.

In here: decisions as values, worked out by pure functions from segments, archives, topics and the
time. Not in here: carrying them out (`worker`). Begin with `policy`, then `retention_classes` and
`schedule`. May import `catalog` and the rooms below it.
"""
