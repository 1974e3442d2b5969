"""Operations: the calls on archives, each of `worker.Worker` or of `tiering`.

In here: the worker as callers have it (`worker`), erase, restore, attach, and what can be asked of
a store without changing it (`inspection`). Not in here: the steps that these share, which are the
room `worker`; the decisions what is due, which are `policy`. Begin with `worker`, then the module
of the call. May import every room but `spark`.
"""
