"""Calls that fail: what a test puts in the place of a call of kvmq or of a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def raising(error: BaseException | type[BaseException]) -> Callable[..., NoReturn]:
    """A function that raises an error, whatever it is given."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise error

    return refuse
