"""The process: its forks, and the threads of a store.

In here: threads that go on until they are stopped (`background`), how long their work takes
(`durations`), locks and waits that an interrupt can't spoil (`locks`), signals (`signals`), an end
that waits for no thread (`ending`), the freed memory that is kept (`freed_memory`), refusing a
store to a forked child (`forking`), and the process that has a folder (`lock_holders`). Not in
here: the work of the threads, which is in `log.flusher` and `engine.upkeep`. Begin with
`background`. May import `errors` and `clock`.
"""
