"""The list of small faults that tests must notice: reading it, and checking it against the source.

Each file `ROOM.toml` beside this one has the faults of one room. A fault replaces one text, which
its source file has exactly once, by another. `tests` names the tests that reach it.

Invariant: a list that `problems` finds nothing in can be run as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LISTS: Final = Path(__file__).resolve().parent


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One small fault."""

    name: str
    """A sentence: the wrong behaviour that it causes."""
    file: str
    was: str
    """Source text; it occurs once in `file`."""
    now: str
    tests: tuple[str, ...]
    """Paths or node ids for pytest, from the project's root."""
    unnoticed: str = ""
    """Why no test can or need notice it; empty where one does."""


class _List(msgspec.Struct, forbid_unknown_fields=True):
    fault: list[Fault]


def read_all(folder: Path = LISTS) -> dict[str, list[Fault]]:
    """The faults of each room, by the room's name."""
    found = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            found[path.stem] = msgspec.toml.decode(path.read_bytes(), type=_List).fault
        except msgspec.DecodeError as e:
            raise ValueError(f"{path}: {e}; see {LISTS / 'README.md'}") from e
    return found


def put_in(fault: Fault, root: Path) -> str:
    """Writes the fault into the source below `root`; returns the text as it was."""
    path = root / fault.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault.was, fault.now), encoding="utf-8")
    return text


def problems(fault: Fault, root: Path = ROOT) -> list[str]:
    """Why the fault can't be tried; empty if it can."""
    path = root / fault.file
    if not path.is_file():
        return [f"{fault.name!r}: there is no file {fault.file}"]
    found = []
    text = path.read_text(encoding="utf-8")
    count = text.count(fault.was)
    if path.suffix == ".py" and not _is_python(text.replace(fault.was, fault.now)):
        found.append(f"{fault.name!r}: leaves a {fault.file} that is not Python")
    if count != 1:
        found.append(f"{fault.name!r}: its text occurs {count} times in {fault.file}, not once")
    if fault.was == fault.now:
        found.append(f"{fault.name!r}: changes nothing")
    if not fault.tests:
        found.append(f"{fault.name!r}: names no tests")
    gone = [test for test in fault.tests if not (root / test.partition("::")[0]).exists()]
    return found + [f"{fault.name!r}: there is no test {test}" for test in gone]


def _is_python(text: str) -> bool:
    try:
        compile(text, "changed.py", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
