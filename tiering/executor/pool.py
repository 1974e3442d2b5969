"""Runs work in a process of its own, so that the store's interpreter has no part in it.

The idea: another Python, at a low priority, is started with the first job and ended by `close`. It
is given a function of a module and its arguments through a pipe, and answers with the result. (It
is not one of `multiprocessing`'s: those are forked, and inherit locks and the state of RocksDB's
threads, or import the caller's main program once more, which then opens the store again.)

An error travels back as well. Pickle makes an error anew by calling its class with `args`. That
fails, or makes another error, wherever a constructor wants something else. So the error is
unpickled once where it was raised. If the result is not the same, class, `args` and attributes
travel by themselves, and the constructor is not called. If the other side can't import the class,
the nearest base class that it can import is taken, and the text names the class.

Invariants:

- The process never touches the store.
- If the process dies, or is told to stop, the job counts as not done.
- When this process ends, the other one ends, at the latest behind its job.
- Packing and unpacking an error never raise, the class is the error's own or one that it derives
  from, and the text says no less.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import IO, Any, Final, Protocol, TypeVar

from kvstore.errors import StoreError, shown
from kvstore.process.forking import release_in_child

T = TypeVar("T")
J = TypeVar("J")
J_co = TypeVar("J_co", covariant=True)
Check = Callable[[], None]
_LOOK: Final = 0.1
"""Seconds between two calls of a job's `check`."""
_NICE: Final = 10
_LENGTH: Final = Struct(">Q")
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tiering.executor.pool import serve; serve()"
)


class WorkerDied(StoreError):
    """The process that made archives ended in the middle of a job; nothing was changed."""


class Transfer(Protocol[J_co]):
    """Work that waits for places more than it computes."""

    def here(self) -> None:
        """Does the work in this process."""

    def remote(self) -> J_co:
        """The job with which another process does it."""
        ...


class Executor(ABC):
    """Does the work of a worker: a process of its own (`Pool`), or Spark's tasks. `work` is a
    function of a module, which has all that it needs in its arguments; `check` is called meanwhile,
    and may raise to give up. Callers do not ask which executor they have.
    """

    width = 1
    """How many jobs are done at a time."""

    @abstractmethod
    def run(self, check: Check, work: Callable[..., T], *args: Any) -> T:
        """Does `work`. Raises the error of `work`, and `WorkerDied`."""

    def each(self, check: Check, work: Callable[[J], T], jobs: Sequence[J]) -> Iterator[T]:
        """Does `work` with each job; yields the results in the order of the jobs."""
        for job in jobs:
            yield self.run(check, work, job)

    def divide(
        self, check: Check, work: Callable[[J], T],
        parts: Callable[[Executor, Check, J], T], job: J,
    ) -> T:  # fmt: skip
        """Does a job that can be divided: as one, or, where several jobs are done at a time, by
        `parts`, which runs its steps by this executor. Both give the same result.
        """
        return self.run(check, work, job) if self.width == 1 else parts(self, check, job)

    def transfer(self, check: Check, work: Callable[[J], None], transfer: Transfer[J]) -> None:
        """Does a transfer: in this process, if the executor does one job at a time, since it would
        only wait; else as a job of `work`.
        """
        if self.width == 1:
            transfer.here()
        else:
            self.run(check, work, transfer.remote())

    def close(self) -> None:  # noqa: B027  # many have nothing to end
        """Ends what does the work; the next job begins it anew."""


class Inline(Executor):
    """Does the work in this process, when it is asked for."""

    def run(self, check: Check, work: Callable[..., T], *args: Any) -> T:
        """See `Executor.run`."""
        check()
        return work(*args)


class Pool(Executor):
    """The process and its pipes; see the module. One job at a time; `close` it at the end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        release_in_child(self)

    def run(self, check: Check, work: Callable[..., T], *args: Any) -> T:
        """See `Executor.run`."""
        with self._lock:
            process = self._process or self._start()
            try:
                job = pickle.dumps((work, args), pickle.HIGHEST_PROTOCOL)
                _write(_pipe(process.stdin), job)
                is_done, found = self._answer(process, check)
            except (OSError, EOFError) as e:
                self._end()
                raise WorkerDied(
                    "the process that makes archives ended in the middle, perhaps for want of "
                    "memory; nothing was changed, the next run begins again"
                ) from e
            except BaseException:
                self._end()
                raise
        if not is_done:
            raise unpack_error(found)
        result: T = found
        return result

    def close(self) -> None:
        """Ends the process, once it has done the job that another thread gave it."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _START, json.dumps(sys.path)]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0)
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], check: Check) -> Any:
        out = _pipe(process.stdout)
        while not select.select([out], [], [], _LOOK)[0]:
            check()
        return pickle.loads(_received(out))  # noqa: S301 # see `_answered`

    def forked(self) -> None:
        """Lets go of the process in a forked child: it is the parent's."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                _pipe(pipe).close()
            process.returncode = 0  # else Python looks for a child that is none of this process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                _pipe(pipe).close()
            process.wait()


def serve() -> None:
    """The other process: does jobs from standard input until that ends."""
    os.nice(_NICE)
    # Answers don't go to standard output itself, which something may print to.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0) as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        source = os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
        while True:
            try:
                job = _received(source)
            except EOFError:
                return
            _write(out, _answered(job))


def _answered(job: bytes) -> bytes:
    """Does a job; returns its result, or its error, as bytes."""
    try:
        # A process of ours sends this to another; nobody else has an end of the pipe.
        work, args = pickle.loads(job)  # noqa: S301
        return pickle.dumps((True, work(*args)), pickle.HIGHEST_PROTOCOL)
    except Exception as e:  # whatever it is, the other side raises it
        return pickle.dumps((False, pack_error(e)), pickle.HIGHEST_PROTOCOL)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "both are asked for"
    return pipe


def _write(out: Any, data: bytes) -> None:
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[out.write(left) :]


def _received(source: Any) -> bytes:
    (size,) = _LENGTH.unpack(_exactly(source, _LENGTH.size))
    return _exactly(source, size)


def _exactly(source: Any, size: int) -> bytes:
    out = bytearray()
    while len(out) < size:
        some = source.read(min(size - len(out), 1 << 20))
        if not some:
            raise EOFError("the other process is gone")
        out += some
    return bytes(out)


_PICKLE = pickle.HIGHEST_PROTOCOL


def pack_error(error: Exception) -> bytes:
    """An error as bytes, for `unpack_error`."""
    data = _tried(error, error)
    if data is not None:
        return data
    kind, state = type(error), dict(vars(error))
    data = _tried((kind, error.args, state), error)
    if data is not None:
        return data
    args = tuple(map(_plain, error.args))
    state = {name: _plain(value) for name, value in state.items()}
    for base in kind.__mro__:
        own = args if base is kind else (f"{kind.__qualname__}: {_text(error)}",)
        data = _dumped((base, own, state))
        if data is not None and _is_error(data):
            return data
    raise AssertionError("Exception itself can be pickled, and every error has it")


def unpack_error(data: bytes) -> Exception:
    """The inverse of `pack_error`."""
    # A process of ours sends this to another; nobody else has an end of the pipe.
    found = pickle.loads(data)  # noqa: S301
    if isinstance(found, Exception):
        return found
    kind, args, state = found
    error: Exception = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


def _tried(form: object, error: Exception) -> bytes | None:
    """A form of an error as bytes, if unpickling gives the same; else None."""
    data = _dumped(form)
    if data is None:
        return None
    try:
        found = unpack_error(data)
        is_same = type(found) is type(error) and str(found) == str(error)
    except Exception:  # whatever a foreign constructor raises
        return None
    return data if is_same and vars(found).keys() == vars(error).keys() else None


def _text(error: Exception) -> str:
    """The text of an error, or how the error prints, if it has none."""
    try:
        return str(error)
    except Exception:  # whatever a foreign class raises
        return shown(error)


def _is_error(data: bytes) -> bool:
    try:
        return isinstance(unpack_error(data), Exception)
    except Exception:  # as above
        return False


def _dumped(value: object) -> bytes | None:
    try:
        return pickle.dumps(value, _PICKLE)
    except Exception:  # pickle raises what it likes, and so does a foreign __reduce__
        return None


def _plain(value: Any) -> Any:
    """A value that can travel: itself, or how it prints."""
    data = _dumped(value)
    if data is None:
        return shown(value)
    try:
        return pickle.loads(data)  # noqa: S301 # it was made here
    except Exception:  # as above
        return shown(value)
