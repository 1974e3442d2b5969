"""One call in one fresh process; with all that it starts; and processes that end by a kill.

The idea: `spawn`, not `fork`: the child starts with nothing of ours in its memory.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def isolated(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a module's function in a process of its own and return what it returned."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(call, *args, **kwargs).result()


def contained(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `isolated`; then the processes that the call started and left are killed."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=os.setpgrp) as pool:
        group = pool.submit(os.getpid).result()
        try:
            return pool.submit(call, *args, **kwargs).result()
        finally:
            end_group(group)


def end_group(group: int) -> None:
    """Kills the processes of a group, if there are any."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def killed(call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a function that ends its own process by SIGKILL; complain if it ends otherwise."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=call, args=args, kwargs=kwargs)
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the writer ended with {process.exitcode}, not by SIGKILL")
