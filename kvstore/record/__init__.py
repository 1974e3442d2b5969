"""Records: messages as bytes, in RocketMQ's formats, without I/O or state.

In here: the layout of a record, checking and walking a log, limits, ids, properties,
compression, hashes of keys and tags (`hashes`) and their Bloom filter (`key_filter`). The room
`put` turns a caller's messages into record bytes. Not in here: where records are kept (`log`), the
loops over bytes (`core.messages` decodes, `core.encoding` encodes), and RocketMQ's other files
(`rocketmq`). Begin with `layout`, then `walk`; `core.names` has every name with a meaning.
May import `core`, `errors` and codecs.
"""
