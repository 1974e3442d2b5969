"""The policy: retention classes, schedule, prices, plan.

In here: decisions as values; what is decided is done in `worker`. Begin with `policy`, then
`schedule`. May import `catalog` and the rooms below it.
"""
