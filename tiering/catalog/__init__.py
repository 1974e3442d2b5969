"""The catalog: the archives that a store has, and reading them through bounded caches.

In here: the rows of the family `archives` (`catalog`, `live`), open archives, their filters and
decoded blocks, and which archives of a place are current (`bucket`). Not in here: the bytes of one
archive (`archive`), and putting objects (`places`). Begin with `tiers`, which answers the store's
questions. May import `places` and the rooms below it.
"""
