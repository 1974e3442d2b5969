"""docs/tour.md: each file, function and method that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = re.compile(r"`((?:kvstore|tiering)/[\w/]+\.pyx?)`")
NAMED = re.compile(r"`([\w/.]+)`")


def defined(path: Path) -> set[str]:
    """The functions, classes and methods of a module, methods as `Class.method`; of a compiled one
    those that its hints name.
    """
    names = set()
    source = path.with_suffix(".pyi") if path.suffix == ".pyx" else path
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{child.name}"
                for child in node.body
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            }
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
    """Files and names of the text that are not there; a name belongs to any file of its part."""
    found = []
    for part in re.split(r"(?m)^## ", text)[1:]:
        known: set[str] = set()
        for name in FILE.findall(part):
            if (ROOT / name).is_file():
                known |= defined(ROOT / name)
            else:
                found.append(name)
        found += [
            name
            for name in NAMED.findall(part)
            if "/" not in name and name not in known and name not in ("wait", "tail")
        ]
    return found


def test_the_tour_names_what_is_there() -> None:
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    assert len(FILE.findall(text)) > 40
    assert missing(text) == []


def test_a_name_that_is_not_there_is_found() -> None:
    line = "## Put\n1. `kvstore/engine/writer.py` `Writer.put_batch`, `Writer.puts`, `kvstore/x.py`"
    assert missing(line) == ["kvstore/x.py", "Writer.puts"]


def test_each_part_of_the_tour_begins_with_a_picture() -> None:
    assert without_picture((ROOT / "docs" / "tour.md").read_text(encoding="utf-8")) == []


def test_a_part_without_a_picture_is_found() -> None:
    assert without_picture("## Put\n\n    batch ─► log\n\n1. The call.\n") == []
    assert without_picture("## Put\n\n1. The call.\n## Pop\n\n    claim\n\n1. Look.\n") == [
        "Put",
        "Pop",
    ]
