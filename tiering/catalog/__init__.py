"""The catalog: which archives a store has, and reading them through bounded caches.

Begin with `tiers`, which answers what the store asks; `catalog` is the rows. May import `places`,
`archive`, `keys`.
"""
