"""docs/tour.md: each file and name in it is there, and a name in the file beside it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = re.compile(r"`((?:kvstore|tiering)/[\w/]+\.pyx?)`")
NAMED = re.compile(r"`([\w/.]+)`")
BESIDE = re.compile(FILE.pattern + r"((?:,?\s+(?:and\s+|or\s+)?`[A-Za-z_][\w.]*`)+)")
"""A file, and the names beside it."""
COMPILED = re.compile(
    r"(?m)^(    )?(?:(?:cdef |cpdef |def |class ).*?(\w+)(?=[(:])|([A-Za-z_]\w*) = )"
)
"""A definition in Cython: whether it is indented, and its name, or that of a constant."""


def defined(path: Path) -> set[str]:
    """The functions, classes, methods and constants that a module defines, methods as
    `Class.method`.
    """
    source = path.read_text(encoding="utf-8")
    return _in_cython(source) if path.suffix == ".pyx" else _in_python(source)


def _in_python(source: str) -> set[str]:
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{child.name}"
                for child in node.body
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def _in_cython(source: str) -> set[str]:
    names, owner = set(), ""
    for line, indent, name, constant in (
        (one[0], one[1], one[2], one[3]) for one in COMPILED.finditer(source)
    ):
        if indent and not constant:
            names.add(f"{owner}.{name}")
        else:
            names.add(constant or name)
        if not indent:
            owner = name if "class " in line else ""
    return names


def without_picture(text: str) -> list[str]:
    """Parts that do not begin with a picture of one to three lines, or have over a dozen hops."""
    return [
        part.partition("\n")[0]
        for part in re.split(r"(?m)^## ", text)[1:]
        if not re.match(r"[^\n]+\n\n(?:    \S?[^\n]*─[^\n]*\n){1,3}\n", part)
        or len(re.findall(r"(?m)^\d+\. ", part)) > 12
    ]


def missing(text: str) -> list[str]:
    """Files and names of the text that are not there. A name beside a file is defined in it, any
    other in a file of its part.
    """
    found = []
    for part in re.split(r"(?m)^## ", text)[1:]:
        files = {name: ROOT / name for name in FILE.findall(part)}
        found += [name for name, path in files.items() if not path.is_file()]
        defines = {name: defined(path) for name, path in files.items() if path.is_file()}
        known = set().union(*defines.values())
        found += [
            name
            for name in NAMED.findall(part)
            if "/" not in name and name not in known and name not in ("wait", "tail")
        ]
        found += [
            f"{file} {name}"
            for file, names in BESIDE.findall(part)
            for name in NAMED.findall(names)
            if name in known and name not in defines.get(file, known)
        ]
    return found


def test_the_tour_names_what_is_there() -> None:
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    assert len(FILE.findall(text)) > 40
    assert missing(text) == []


def test_a_name_that_is_not_there_is_found() -> None:
    line = "## Put\n1. `kvstore/engine/writer.py` `Writer.put_batch`, `Writer.puts`, `kvstore/x.py`"
    assert missing(line) == ["kvstore/x.py", "Writer.puts"]


def test_a_name_beside_another_file_is_found() -> None:
    line = (
        "## Put\n1. `kvstore/engine/writer.py` `Writer.put_batch` and `PendingTail.has_ended`, by\n"
        "`kvstore/core/pending_tail.pyx` `PendingTail`, `PendingTail.note`."
    )
    assert missing(line) == ["kvstore/engine/writer.py PendingTail.has_ended"]


def test_each_part_of_the_tour_begins_with_a_picture() -> None:
    assert without_picture((ROOT / "docs" / "tour.md").read_text(encoding="utf-8")) == []


def test_a_part_without_a_picture_is_found() -> None:
    assert without_picture("## Put\n\n    batch ─► log\n\n1. The call.\n") == []
    assert without_picture("## Put\n\n1. The call.\n## Pop\n\n    claim\n\n1. Look.\n") == [
        "Put",
        "Pop",
    ]
