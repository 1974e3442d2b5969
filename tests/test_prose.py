"""Prose is plain English in code, tests and documents.

The rules catch openings that hide the subject of a sentence, pronouns where a noun belongs, chains
of invariants, and docstrings that give orders. Each is fed text that breaks it, so that a rule gone
blind fails here.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = (
    "kvstore", "tiering", "pyspark_kvmq", "kombu_kvmq", "bench", "build_backend", "docs", "tests"
)  # fmt: skip
_SENTENCE: Final = re.compile(
    r"(?:^|[.:;!?] )\s*(What|Whoever|Have the|Take note|Such as)\b(?![^.]*\?)"
)
_WORDS: Final = re.compile(r"\b(?:[Ww]hoever|of (?:before|today))\b")
_NAMELESS: Final = re.compile(
    r"(?<!part )(?<!parts )\bof it\b|^The same(?=[^ ]| (?:as|but|for|goes|in|of|with)\b)"
)
_COMPILED: Final = re.compile(r'"""(.*?)"""|# ([^\n]*)', re.DOTALL)
_VERB_OF_COMMAND: Final = re.compile(r"\b(?:command|group)\(")
# Openings such as "Log positions of a queue".
_NOUNS: Final = {"Block", "Group", "Log", "Name", "Position", "Store", "Value"}
_OF_HEADINGS: Final = re.compile(r"^(#|\|)|^\s*```")


def hidden_subjects(text: str) -> list[str]:
    """The openings of sentences that hide their subject, and words that name nobody. A question may
    begin with "What".
    """
    folded = " ".join(text.split())
    found = [*_SENTENCE.finditer(folded), *_WORDS.finditer(folded)]
    return [folded[m.start() : m.start() + 60] for m in found]


def _of_python(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from text.split("\n\n")
    comment: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment.append(token.string.lstrip("#! "))
        elif token.type != tokenize.NL and comment:
            yield " ".join(comment)
            comment = []


def _of_page(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", text):
        if not _OF_HEADINGS.match(paragraph):
            yield re.sub(r"^([-*]|\d+\.) ", "", paragraph)


def prose(path: Path) -> Iterator[str]:
    """The paragraphs of a file's docstrings, comments or text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return _of_python(text)
    if path.suffix == ".md":
        return _of_page(text)
    return (a or b for a, b in _COMPILED.findall(text))


@cache
def all_prose() -> dict[str, list[str]]:
    """The paragraphs of each file of the project."""
    files = [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".md") and ".cache" not in path.parts
    ]
    assert len(files) > 600
    return {str(path.relative_to(ROOT)): list(prose(path)) for path in [*files, ROOT / "README.md"]}


def test_no_sentence_hides_its_subject_behind_what_whoever_or_an_order_to_note() -> None:
    found = {
        path: hidden
        for path, paragraphs in all_prose().items()
        if (hidden := [h for paragraph in paragraphs for h in hidden_subjects(paragraph)])
    }
    assert found == {}


def test_each_opening_is_found_wherever_prose_stands(tmp_path: Path) -> None:
    bad = {
        "a.py": '"""What is kept stays."""\n',
        "b.py": "x = 1  # Whoever reads this waits.\n",
        "c.py": 'def f():\n    """Reads. Have the thread\n    end."""\n',
        "d.pyx": "# What is at a place.\n",
        "e.md": "One line.\n\n- Take note of it.\n",
        "f.md": "A lock is given to whoever asks.\n",
        "g.py": "x = 1  # The keys of today.\n",
    }
    for name, text in bad.items():
        path = tmp_path / name
        path.write_text(text)
        assert [h for paragraph in prose(path) for h in hidden_subjects(paragraph)], name
    good = tmp_path / "good.md"
    good.write_text("# What it is\n\nIt says what is kept. What does a query cost? Little.\n")
    assert [h for paragraph in prose(good) for h in hidden_subjects(paragraph)] == []


def long_chains(text: str) -> list[str]:
    """Sentences that chain four invariants or more by semicolons, where a list reads better."""
    folded = " ".join(text.split())
    if not folded.startswith(("Invariants: ", "Invariant: ")):
        return []
    return [s for s in re.split(r"(?<=[.]) (?=[A-Z])", folded) if s.count(";") >= 3]


def test_four_invariants_or_more_are_a_list() -> None:
    found = {
        path: chains
        for path, texts in all_prose().items()
        if path.startswith(("kvstore/", "tiering/"))
        for text in texts
        for paragraph in text.split("\n\n")
        if (chains := long_chains(paragraph))
    }
    assert found == {}


def test_a_chain_of_four_invariants_is_found() -> None:
    assert long_chains("Invariants: one is 1; two is 2; three\nis 3; four is 4.") != []
    assert long_chains("Invariants: one is 1; two is 2; three is 3.") == []
    assert long_chains("Invariants:\n\n- One is 1.\n- Two is 2.") == []


def nameless(text: str) -> list[str]:
    """The places that have a pronoun behind "of", or begin with "The same", where the noun belongs.
    `_NAMELESS` lets a part of something pass, as its noun mostly stands just before.
    """
    folded = " ".join(text.split())
    return [folded[max(m.start() - 30, 0) : m.end() + 30] for m in _NAMELESS.finditer(folded)]


def test_prose_names_the_noun_instead_of_it_or_the_same() -> None:
    found = {
        path: places
        for path, paragraphs in all_prose().items()
        if (places := [p for paragraph in paragraphs for p in nameless(paragraph)])
    }
    assert found == {}


def test_a_sentence_without_its_noun_is_found() -> None:
    for bad in ("The file has all\nof it.", "The same for rows.", "The same, with a key."):
        assert len(nameless(bad)) == 1
    for good in (
        "An archive, or a part of it.",
        "Rows of the same topic.",
        "The same key is found.",
    ):
        assert nameless(good) == []


def bases(opening: str) -> set[str]:
    """The words that may be the base form of a verb in the third person. "As" is none."""
    if len(opening) < 3:
        return set()
    found = {opening[:-1]} if opening.endswith("s") and not opening.endswith("ss") else set()
    if opening.endswith("es"):
        found.add(opening[:-2])
    if opening.endswith("ies"):
        found.add(opening[:-3] + "y")
    return found


def openings(source: str) -> Iterator[tuple[str, str]]:
    """The functions that have a docstring, each with its first word. A verb of the command is left
    out: its docstring is its help, which is an order by custom.
    """
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (text := ast.get_docstring(node))
            and not any(_VERB_OF_COMMAND.search(ast.unparse(d)) for d in node.decorator_list)
        ):
            yield node.name, text.split()[0].rstrip(".,:;")


def orders(sources: dict[str, str]) -> list[str]:
    """The functions whose docstring begins with a verb as an order: the base form of a word that
    begins another docstring.
    """
    found = [(path, *opening) for path, source in sources.items() for opening in openings(source)]
    known = {base for _, _, word in found for base in bases(word)} - _NOUNS
    return [f"{path}: {name}: {word}" for path, name, word in found if word in known]


def test_docstrings_of_functions_say_what_they_do_in_the_third_person() -> None:
    sources = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in ("kvstore", "tiering")
        for path in sorted((ROOT / package).rglob("*.py*"))
        if path.suffix in (".py", ".pyi")
    }
    assert orders(sources) == []


def test_a_docstring_that_gives_an_order_is_found() -> None:
    third = 'def f() -> None:\n    """Writes a row."""\n'
    order = 'def g() -> None:\n    """Write all rows."""\n'
    assert orders({"a.py": third, "b.py": order}) == ["b.py: g: Write"]
    assert orders({"a.py": third, "b.py": '@main.command("write")\n' + order}) == []
    assert orders({"a.py": third, "b.py": order.replace("Write", "Position")}) == []
