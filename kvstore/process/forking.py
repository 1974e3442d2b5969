"""Forking: the child of a process with open stores gets none of them, and connections of its own.

The idea: threads, locks and RocksDB do not survive a fork, and two processes that write one store
would give out the same offsets. So right after a fork, in the child, each object that a caller
holds (`Store`, `aio.Store`, `tiering.Worker`) becomes one whose every call raises `StoreForked`,
and each part that holds a file or a socket open closes it there. The connections of threads begin
anew in the child (`client.socket_link`, `sharding.sharded_store`); those of asyncio are refused as
stores are, since their loop stayed behind. No call of the parent checks anything for this.

Invariants: nothing that the parent uses is written, unlocked or closed for it; nothing here waits
for a lock, since its holder may be a thread that the child does not have; calls that are added to a
handle later are refused, too.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakSet

from kvstore.errors import StoreForked


class Holder(Protocol):
    """A part that holds a file, a lock, a pipe or a database open."""

    def forked(self) -> None:
        """In the child: release its own copies, and leave the parent's alone."""


_ALLOWED: Final = frozenset({"path", "close", "stop"})
"""The attributes of a refused handle that work: its path, and closing, which does nothing."""
_DESCRIPTORS: Final = "/proc/self/fd"
_handles: Final[WeakSet[object]] = WeakSet()
_holders: Final[WeakSet[Holder]] = WeakSet()
_calls: Final[list[Callable[[], None]]] = []


def refuse_in_child(handle: object) -> None:
    """Makes every call of this object raise `StoreForked` in a child that is forked from now on."""
    _handles.add(handle)


def release_in_child(holder: Holder) -> None:
    """Calls `holder.forked` in a child that is forked from now on. One that goes on there says so
    again in `forked`, for the children of the child.
    """
    _holders.add(holder)


def call_in_child(call: Callable[[], None]) -> None:
    """Calls a function in every child that is forked from now on."""
    _calls.append(call)


def module_lock() -> threading.Lock:
    """A lock for a module's own use; in a forked child it is free, even if a thread of the parent
    held it.
    """
    lock = threading.Lock()
    call_in_child(lock._at_fork_reinit)  # type: ignore[attr-defined]  # typeshed leaves it out
    return lock


def blind(folder: Path) -> None:
    """In the child: replace a library's open descriptors of files below a folder by those of a
    closed pipe, because the library can't be told to close them. Reads and writes by them fail.
    """
    there = folder.resolve()
    found = []
    for name in os.listdir(_DESCRIPTORS):
        with suppress(OSError):  # the listing's own descriptor is closed by now
            if Path(os.readlink(f"{_DESCRIPTORS}/{name}")).is_relative_to(there):
                found.append(int(name))
    let_go(found)


def let_go(descriptors: Iterable[int]) -> None:
    """In the child: replace open descriptors by those of a closed pipe, as `blind` does."""
    nowhere, its_writer = os.pipe()
    os.close(its_writer)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


def keep_for_ever(thing: object) -> None:
    """In the child: keep a library's object from being freed, which would wait for threads that
    only the parent has.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def end_without_destructors() -> None:
    """In the child: make the process end without running C++'s static destructors. RocksDB's would
    join threads that only the parent has (a segmentation fault).
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's; it passes the exit code on
        libc.on_exit(libc._exit, None)


class _Refused:
    """Its methods stand in a child before those of a handle's own class."""

    path: Any
    _url: str | None

    def __getattribute__(self, name: str) -> Any:
        if name not in _ALLOWED and not name.startswith("__"):
            _refuse(self)
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of another process>"

    def __enter__(self) -> NoReturn:
        _refuse(self)

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """The parent's handle is the parent's to close."""

    stop = close


class _RefusedAsync(_Refused):
    async def __aenter__(self) -> NoReturn:
        _refuse(self)

    async def __aexit__(self, *_: object) -> None:
        pass

    async def close(self) -> None:  # type: ignore[override]  # as the handle's own
        """See `_Refused.close`."""


def _methods(*kinds: type) -> dict[str, Any]:
    """The methods of classes, those of the last one first."""
    return {name: one for kind in kinds for name, one in vars(kind).items() if callable(one)}


_REFUSALS: Final = _methods(_Refused)
_REFUSALS_AWAITED: Final = _methods(_Refused, _RefusedAsync)


def _refuse(handle: _Refused) -> NoReturn:
    url = type(handle)._url
    if url is not None:
        raise StoreForked(
            f"the connection to {url} was made in the process of which this one is a fork, and its "
            "loop stayed there: connect again in this process"
        )
    raise StoreForked(
        f"{type(handle).path} was opened in another process, of which this one "
        "is a fork: only that one may use it. Open a store in the process that uses it, after the "
        "fork; two processes can't write one store"
    )


def _forked() -> None:
    named = [
        (handle, getattr(handle, "path", "the store"), getattr(handle, "url", None))
        for handle in _handles
    ]
    for handle, path, url in named:
        kind = type(handle)
        is_awaited = iscoroutinefunction(getattr(kind, "close", None))
        facts = {"__module__": kind.__module__, "path": path, "_url": url}
        # No other base: an object takes no class of another layout than its own.
        refusing = _REFUSALS_AWAITED if is_awaited else _REFUSALS
        handle.__class__ = type(kind.__name__, (kind,), refusing | facts)
    # A child of the child has nothing to do with those that release everything here.
    holders = list(_holders)
    _handles.clear()
    _holders.clear()
    for holder in holders:
        holder.forked()
    for call in _calls:
        call()


os.register_at_fork(after_in_child=_forked)
