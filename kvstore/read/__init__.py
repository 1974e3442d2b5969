"""Reading: get, pull, query and find, filters, and the archives behind them.

In here: from an offset, a key, an id or a time to messages. Nothing here changes the store. Begin
with `reader`, then `pull`; `cold` reads archives, `find` looks keys up. May import `meta`, `index`,
`log` and the rooms below them.
"""
