"""Operations: the calls on archives, each of `worker.Worker` or of `tiering`.

In here: the worker as callers have it (`worker`), erase, restore, attach, the plan of a store, and
the topics that share archives (`together`). Not in here: the steps that these share, which are the
room `worker`; the decisions what is due, which are `policy`. Begin with `worker`, then the module
of the call. May import all rooms of `tiering` but `spark`.
"""
