"""Put: a caller's messages, checked and turned into record bytes except for position and offset.

Not in here: taking offsets, and appending to the log (`engine.writer`). Begin with `prepare`;
`batch` encodes, `put_routes` has the facts of a queue, `explain` says which message of a refused
batch is wrong. May import `record` and `errors`.
"""
