"""The process: its forks, and the threads of a store.

In here: threads that go on until they are stopped (`background`), locks and waits that an interrupt
can't spoil (`locks`), and refusing a store to a forked child (`forking`). The work of the threads
is in `log.flusher` and `engine.housekeeper`. Begin with `background`. May import `errors` and
`clock`.
"""
