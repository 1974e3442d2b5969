"""Reading: get, pull, query and find, filters, and the archives behind them.

In here: the ways from an offset, a key, an id or a time to messages. Nothing here changes the
store. Not in here: messages under lock, which are `pop`, and decoding a record, which is `core`.
Begin with `reader`, then `pull`; `cold` reads archives, `find` looks keys up, `sql` is a room of
its own. May import `meta`, `index`, `log` and the rooms below them.
"""
