"""Put: a caller's messages, checked and turned into record bytes except for position and offset.

Not in here: the making of records (`core.encoding`), taking offsets, and appending to the log
(`engine.writer`). Begin with `put_routes`, which has the facts of topics; `explain` says which
message of a refused batch is wrong. May import `record`, `core` and `errors`.
"""
