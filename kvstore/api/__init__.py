"""The calls of an open store, grouped by subject; `store.Store` has them all.

In here: the store, a namespace's view of it, and founding a store from an existing log. Not in
here: the work of a call, which is in the rooms below: `pop`, `read`, `engine`, `meta`. Begin with
`store`, then the `*_calls`. Programs import `kvstore`, not this room; `kvstore.aio` imports `store`
and `namespace_view`. This room may import every room but `cli`.
"""
