"""One call in one fresh process, and processes that end by a kill.

The idea: `spawn`, not `fork`: the child starts with nothing of ours in its memory.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def isolated(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a module's function in a process of its own and return what it returned."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(call, *args, **kwargs).result()


def killed(call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a function that ends its own process by SIGKILL; complain if it ends otherwise."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=call, args=args, kwargs=kwargs)
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the writer ended with {process.exitcode}, not by SIGKILL")
