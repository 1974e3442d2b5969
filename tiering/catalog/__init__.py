"""The catalog: the archives that a store has, and reading them through bounded caches.

In here: the rows of the family `archives`, open archives, decoded blocks, and rows found again from
the archives alone. Not in here: the bytes of one archive (`archive`), and putting objects
(`places`). Begin with `tiers`, which answers the store's questions; `catalog` is the rows. May
import `places`, `archive` and `keys`.
"""
