"""The calls of an open store, grouped by subject; `store.Store` has them all.

In here: the store, a namespace's view of it, and founding a store from what is there. What a call
does is in the rooms below: `pop`, `read`, `engine`, `meta`. Begin with `store`, then the `*_calls`.
May import every room but `cli`.
"""
