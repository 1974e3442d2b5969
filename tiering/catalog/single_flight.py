"""Single flight: one call for all threads that want the same at the same time.

The idea: the first thread that wants something makes the call, or has it made; threads that come
meanwhile wait for its result.

Invariants: no lock is held while anything is called; a failed call is not kept, and all who waited
for it get the same error; the result of a call that was forgotten is for those who waited, and is
not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Generic, TypeVar

from kvstore.process.locks import result_of

K = TypeVar("K")
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Calls under way, by key. The caller's `lock` guards them: it is held for each method but
    `do`, and while a result is kept.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._calls: dict[K, tuple[object, Future[T]]] = {}

    def under_way(self) -> dict[K, tuple[object, Future[T]]]:
        """The calls under way, by key."""
        # A call that was struck before it could end itself is over, too.
        for key in [key for key, (_, future) in self._calls.items() if future.done()]:
            del self._calls[key]
        return self._calls

    def future(self, key: K) -> Future[T] | None:
        """The result of the call under way, if there is one."""
        found = self.under_way().get(key)
        return None if found is None else found[1]

    def begin(
        self, key: K, call: Callable[[], T], start: Callable[[Callable[[], T]], Future[T]],
        keep: Callable[[T], object],
    ) -> Future[T]:  # fmt: skip
        """Begins a call: `start` has it made, in any thread but this one while it holds the lock.
        `keep` is given the result, unless the call was forgotten by then.
        """
        mine = object()

        def run() -> T:
            try:
                found = call()
                with self._lock:
                    if self._calls.get(key, (None,))[0] is mine:
                        keep(found)
                return found
            finally:
                with self._lock:
                    if self._calls.get(key, (None,))[0] is mine:
                        del self._calls[key]

        future = start(run)
        self._calls[key] = mine, future
        return future

    def forget(self, keys: Iterable[K]) -> None:
        """Lets the next callers begin anew; results of calls under way are not kept."""
        for key in keys:
            self._calls.pop(key, None)

    def do(
        self, key: K, call: Callable[[], T], *, find: Callable[[], T | None] = lambda: None,
        keep: Callable[[T], object] = lambda _: None,
    ) -> T:  # fmt: skip
        """The result of a call: as `find` has it, or of the call under way, or of one that this
        thread makes.
        """
        mine: list[Callable[[], T]] = []
        made: Future[T] = Future()

        def start(run: Callable[[], T]) -> Future[T]:
            mine.append(run)
            return made

        with self._lock:
            found = find()
            if found is not None:
                return found
            future = self.future(key) or self.begin(key, call, start, keep)
        for run in mine:
            try:
                made.set_result(run())
            except BaseException as e:
                made.set_exception(e)
        return result_of(future)
