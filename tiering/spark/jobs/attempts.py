"""Attempts: runs a task so that two attempts of it never write to one file.

The idea: Spark may begin a task again, while the first one is still at work somewhere. So a job
that writes files is changed, in the task, to write into a folder that nobody else has, inside the
one that it was given; its answer says where the files are. The giver of the folder removes it
whole, with the files that lost attempts have left in it.

Invariants: an attempt makes no folder but its own, so that one which comes too late has nowhere to
write; an error that the work raises is an answer, since the next attempt would raise it again; only
a task that dies is tried again.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import singledispatch
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tiering.errors import SparkFailed
from tiering.executor.pool import pack_error, unpack_error
from tiering.executor.segment_encoder import SegmentJob
from tiering.spark.workers import tune_process


class Answer(NamedTuple):
    """The answer of a task: the value that the work returned, or the error that it raised."""

    is_done: bool
    found: Any


def packed(work: Callable[..., object], args: tuple[object, ...]) -> bytes:
    """A task as it is sent: a function of a module, and all that it needs."""
    return pickle.dumps((work, args), pickle.HIGHEST_PROTOCOL)


def answers(tasks: Iterable[bytes]) -> Iterator[bytes]:
    """Runs packed tasks, one after the other: the function that Spark applies to a part of its
    data.

    Yields the answers, packed; see `answer_of`.
    """
    tune_process()
    for task in tasks:
        # The driver sent it; nobody else has an end of the pipe.
        work, args = pickle.loads(task)  # noqa: S301
        yield _answered(work, args)


def answer_of(data: bytes) -> Answer:
    """Unpacks the answer of a task."""
    # A task of ours sends it to us.
    is_done, found = pickle.loads(data)  # noqa: S301
    return Answer(is_done, found if is_done else unpack_error(found))


def _answered(work: Callable[..., object], args: tuple[object, ...]) -> bytes:
    attempt = secrets.token_hex(8)
    try:
        found = work(*(apart(one, attempt) for one in args))
    except Exception as e:  # whatever it is, the other side raises it
        return pickle.dumps((False, pack_error(e)), pickle.HIGHEST_PROTOCOL)
    try:
        return pickle.dumps((True, found), pickle.HIGHEST_PROTOCOL)
    except Exception as e:
        told = SparkFailed(f"a task answered what can't be sent ({e}): {found!r}")
        return pickle.dumps((False, pack_error(told)), pickle.HIGHEST_PROTOCOL)


@singledispatch
def apart(job: Any, attempt: str) -> Any:
    """A job as one attempt does it: with a folder of its own, if it writes files."""
    return job


@apart.register
def _(job: SegmentJob, attempt: str) -> SegmentJob:
    folder = Path(job.folder) / attempt
    # Folders above it are not made: if their giver has removed them, this attempt is too late.
    folder.mkdir()
    return msgspec.structs.replace(job, folder=str(folder))
