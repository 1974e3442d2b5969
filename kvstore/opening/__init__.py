"""Opening: what a folder holds, recovery, and each way to make an index from a log or archives.

Not in here: the calls that open (`api.store`, `api.founding`). Begin with `store_folder`, then
`recovery`. May import `rocketmq`, `index`, `log`, `meta` and the rooms below them.
"""
