"""Consuming: messages are popped, given to handlers, and acked or given back, until it is stopped.

In here: the call with its settings (`consuming`), the messages that a consumer holds (`hand`), its
rounds of calls to the store (`rounds`), and the two that run them: in threads (`consumer`) and in
an event loop (`async_consumer`). Not in here: pops and locks themselves, which are `pop`. Begin
with `consuming`, then `hand` and `rounds`. All is written against the public calls of a store, so
it runs over whatever has these: of `pop` it uses only the values that calls take. May import `pop`
and the rooms below it.
"""
