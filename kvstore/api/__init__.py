"""The calls of an open store: one class of calls, and a namespace's view of them.

In here: the calls, opening and closing a store, a namespace's view, founding a store from an
existing log. Not in here: the work of a call, which is in the rooms below: `pop`, `read`, `engine`,
`meta`. Begin with `calls`, then `store`. Programs import `kvstore`, not this room; `kvstore.aio`
imports `store` and `namespace_view`. May import `engine` and the rooms below it; `store` alone
imports `tiering`.
"""
