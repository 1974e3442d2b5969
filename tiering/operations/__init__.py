"""Operations: what a caller asks of archives, each a call of `worker.Worker` or of `tiering`.

In here: the worker as callers have it, erase, restore, attach, plan. The steps that they share are
in the room `worker`. Begin with `worker`.
"""
