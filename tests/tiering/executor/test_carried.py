"""An error of another process is raised here as the same error, with all its facts."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import kvstore
import tiering
from kvstore.errors import FormatTooNew, OffsetNotFound, StoreError
from tests.tiering.worker import pools
from tiering.executor.pool import Pool, pack_error, unpack_error

GIVEN: dict[str, Any] = {
    "int": 7,
    "str": "text",
    "bool": True,
    "int | None": 7,
    "Sequence[str]": ("text",),
    # Two exceptions are never equal.
    "Mapping[str, Exception] | None": {},
}


def modules() -> Iterator[str]:
    for package in (kvstore, tiering):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".spark" not in found.name and not found.name.endswith("__main__"):
                yield found.name


def errors() -> list[type[StoreError]]:
    for name in modules():
        importlib.import_module(name)
    found, left = set(), [StoreError]
    while left:
        kind = left.pop()
        found.add(kind)
        left += kind.__subclasses__()
    return sorted((k for k in found if k.__module__.startswith(("kvstore", "tiering"))), key=str)


def made(kind: type[StoreError]) -> StoreError:
    """An error of a class, with something in everything that its constructor takes."""
    try:
        parameters = list(inspect.signature(kind).parameters.values())
    except ValueError:
        parameters = []
    named = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    given = [GIVEN.get(str(p.annotation), "something") for p in named]
    return kind(*(given or ["message"]))


def test_every_error_is_the_same_after_pickling_copying_and_carrying() -> None:
    kinds = errors()
    assert len(kinds) > 60
    for kind in kinds:
        error = made(kind)
        for again in (
            pickle.loads(pickle.dumps(error)),
            copy.copy(error),
            unpack_error(pack_error(error)),
        ):
            assert type(again) is kind
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


class TwoTexts(Exception):
    """Its constructor is not what it can be made anew with."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.second = second


class Changed(Exception):
    """Made anew by its constructor it says something else."""

    def __init__(self, text: str) -> None:
        super().__init__(f"changed: {text}")


class Refusing(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("nobody pickles this")


def local() -> Exception:
    class Local(OSError):
        pass

    return Local(5, "a local one")


def foreign() -> list[Exception]:
    carrying = ValueError("with a lambda", lambda: None)
    attributed = ValueError("attributed")
    attributed.more = 5  # type: ignore[attr-defined]
    attributed.lock = pools.Pools().run  # type: ignore[attr-defined]
    return [
        TwoTexts("a", "b"), Changed("x"), Refusing("y"), carrying, attributed, KeyError("key"),
        OSError(28, "no space", "/a/file"), FileNotFoundError(2, "not there", "a", None, "b"),
        UnicodeDecodeError("u", b"\xff", 0, 1, "bad"), UnicodeEncodeError("l", "x", 0, 1, "n"),
        subprocess.CalledProcessError(3, ["ls"], b"out"), MemoryError(), StopIteration(5),
        ExceptionGroup("several", [ValueError("one")]), SyntaxError("bad", ("f", 1, 2, "t")),
    ]  # fmt: skip


def test_foreign_errors_keep_their_class_and_text() -> None:
    for error in foreign():
        again = unpack_error(pack_error(error))
        assert type(again) is type(error)
        if not error.args[1:] or not callable(error.args[1]):
            assert str(again) == str(error)
    (two, *_) = foreign()
    again = unpack_error(pack_error(two))
    assert (again.args, vars(again)) == (("a and b",), {"second": "b"})
    assert "lambda" in unpack_error(pack_error(foreign()[3])).args[1]
    assert vars(unpack_error(pack_error(foreign()[4])))["more"] == 5


def test_an_error_of_a_class_that_nobody_else_can_import_is_the_nearest_that_is() -> None:
    again = unpack_error(pack_error(local()))
    assert type(again) is OSError
    assert "a local one" in str(again)
    assert "Local" in str(again)


def test_an_error_that_has_no_text_is_carried_all_the_same() -> None:
    class Silent(OSError):
        def __str__(self) -> str:
            raise RuntimeError("nothing to say")

    again = unpack_error(pack_error(Silent(5, "a")))
    assert type(again) is OSError
    assert "Silent" in str(again)


def test_the_other_process_raises_what_its_work_raised() -> None:
    pool = Pool()
    try:
        for error in (FormatTooNew("too new", 9, 3, "a"), OffsetNotFound("gone", 1, 2)):
            with pytest.raises(type(error), match=str(error)) as caught:
                pool.run(nothing, pools.raised, error)
            assert vars(caught.value) == vars(error)
        with pytest.raises(Exception, match="pickle"):
            pool.run(nothing, pools.unsendable)
        assert pool.run(nothing, len, "it goes on") == 10
    finally:
        pool.close()


def nothing() -> None:
    pass
