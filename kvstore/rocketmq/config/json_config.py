"""RocketMQ's JSON files: read as leniently as fastjson does, and with the `.bak` beside them.

The idea: fastjson writes a map with integer keys as `{0:3,1:5}` and reads that back, as well as
names without quotes, text in single quotes and superfluous commas. The text is taken apart into
tokens, put together again as strict JSON, and decoded by msgspec. RocketMQ moves a file to
`NAME.bak` before it writes the file anew, so the `.bak` counts when the file is missing, empty or
broken.

Invariant: any bytes give a value or FormatError; a file that is broken is never taken for an empty
one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from kvstore.errors import FormatError
from kvstore.files import Files

BACKUP: Final = ".bak"

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<mark>[{}\[\]:,])
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<single>'(?:[^'\\]|\\.)*')
    | (?P<bare>[^\s{}\[\]:,"']+)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING: Final = frozenset("{[,")
_CLOSING: Final = frozenset("}]")
_MARKS: Final = frozenset(["", *"{}[]:,"])


def parse(data: bytes, name: str) -> Any:
    """The value of JSON as fastjson reads it. Raises FormatError, naming `name`, for other text."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass  # most tables are strict JSON; a table of offsets never is
    try:
        return msgspec.json.decode(_strict(data.decode()))
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as e:
        raise FormatError(f"{name} is not JSON: {e}") from e


def read_config(path: Path, files: Files) -> tuple[Any, bool] | None:
    """The value in the file, or else in its `.bak`, and whether it was the `.bak`; None if there is
    neither.

    Raises FormatError, naming the file, if one of them is broken and the other can't replace it.
    """
    broken: FormatError | None = None
    for candidate in (path, path.with_name(path.name + BACKUP)):
        if not files.size(candidate):
            continue
        try:
            return parse(files.read(candidate), str(candidate)), candidate != path
        except FormatError as e:
            broken = broken or e
    if broken is None:
        return None
    raise FormatError(
        f"{broken}, and there is no intact {path.name}{BACKUP} either; restore one of the two, or "
        f"remove both to go on without what they say"
    ) from broken


def _strict(text: str) -> str:
    """The same value as strict JSON; the decoder refuses text that this can't understand."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return text
        at = found.end()
        _append(parts, found.lastgroup or "", found.group())
    return "".join(parts)


def _append(parts: list[str], kind: str, token: str) -> None:
    """Add one token in its strict form."""
    if kind == "space":
        return
    if kind == "single":
        token = msgspec.json.encode(_unquote(token)).decode()
    last = parts[-1] if parts else ""
    if kind == "mark" and token == ":" and last not in _MARKS and last[-1] != '"':
        parts[-1] = msgspec.json.encode(last).decode()  # a bare name: {0:3}
    elif kind == "mark" and token == "," and last in _OPENING:
        return  # a superfluous comma: [,1] or [1,,2]
    elif kind == "mark" and token in _CLOSING and last == ",":
        parts.pop()  # a superfluous comma: [1,]
    elif kind != "mark" and last not in _MARKS:
        token = " " + token  # two values side by side must not become one
    parts.append(token)


def _unquote(token: str) -> str:
    """The text in single quotes; its escapes are JSON's, and `\\'`."""
    inner = token[1:-1].replace("\\'", "'")
    # A double quote needs no escape in here but does in JSON.
    escaped = re.sub(r'(\\.)|"', lambda m: m.group(1) or '\\"', inner, flags=re.DOTALL)
    try:
        return msgspec.json.decode(f'"{escaped}"', type=str)
    except msgspec.DecodeError:
        return inner
