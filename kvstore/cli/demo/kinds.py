"""What kind of line a line of Python is, told line by line.

The idea: the demo needs a tag for every line, fast, and also for files that no tokenizer takes. The
first word decides; strings in triple quotes are followed from line to line.

Invariant: any text gives a kind; what is not Python gives a wrong one at worst.
"""

from __future__ import annotations

import re
from typing import Final

_FIRST_WORD: Final[dict[str, str]] = {
    "import": "import",
    "from": "import",
    "def": "def",
    "async": "def",
    "class": "class",
    "return": "return",
    "yield": "return",
    "raise": "raise",
    **dict.fromkeys(("if", "elif", "else", "for", "while", "match", "case"), "control"),
    **dict.fromkeys(("try", "except", "finally", "with", "break", "continue", "pass"), "control"),
}
_FIRST: Final[dict[str, str]] = {"#": "comment", "@": "decorator", '"': "string", "'": "string"}

_WORD: Final = re.compile(r"\w+")
_TOKEN: Final = re.compile(r"""\\.|\"\"\"|'''|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\#""")
"""What matters outside a triple-quoted string: escapes, triple quotes, strings, comments."""


class LineKinds:
    """Tells the kinds of one file's lines, asked for in order."""

    def __init__(self) -> None:
        self._open = ""  # the triple quote of the string the last line ended in

    def kind(self, line: str) -> str:
        """The kind of the file's next line: one word, fit to be a tag."""
        if self._open:
            if self._open in line:
                self._follow(line)
            return "string"
        text = line.lstrip()
        if not text:
            return "blank"
        if '"""' in text or "'''" in text:
            self._follow(text)
        kind = _FIRST.get(text[0])
        if kind is None:
            word = _WORD.match(text)
            kind = _FIRST_WORD.get(word.group(), "code") if word else "code"
        return kind

    def _follow(self, text: str) -> None:
        """Find out whether a triple-quoted string is open where the line ends."""
        at = 0
        while True:
            if self._open:
                at = _closing(text, self._open, at)
                if at < 0:
                    return
                self._open = ""
            token = _TOKEN.search(text, at)
            if token is None or token.group() == "#":
                return
            at = token.end()
            if token.group() in ('"""', "'''"):
                self._open = token.group()


def _closing(text: str, quote: str, at: int) -> int:
    """Where the text goes on after the closing quote; -1 if the string does not end here."""
    while True:
        found = text.find(quote, at)
        if found < 0:
            return -1
        backslashes = len(text[:found]) - len(text[:found].rstrip("\\"))
        if backslashes % 2 == 0:
            return found + 3
        at = found + 1
