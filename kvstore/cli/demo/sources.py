"""What the demo puts: Python's own standard library, files, or standard input.

The idea: a source can be read twice and gives the same messages both times. The first reading is
put into the store, the second is what the answers are compared with; so the store is checked
against the files themselves, not against what the demo remembers.

Invariants: every message names its queue, so that both readings agree on it; topics, tags, keys and
properties hold only what the store allows, whatever the input says.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from kvstore import Message
from kvstore.cli.demo.kinds import LineKinds
from kvstore.cli.places import line_of
from kvstore.record.names import RESERVED, SYSTEM_TOPICS

QUEUES: Final = 8
"""Queues of a topic at most."""

_NOT_TOPIC: Final = re.compile(r"[^A-Za-z0-9%|_-]")
_TOPIC_MAX: Final = 127
_SPACE: Final = re.compile(r"\s+")
_NOT_TEXT: Final = re.compile(r"[\x00-\x1f\x7f]")
"""Some of these separate properties in a record."""


class Source(Protocol):
    """Something to put."""

    title: str
    """What it is, for people."""
    same_order: str
    """What the messages of a queue are, in order."""

    def messages(self) -> Iterator[Message]:
        """All messages; the same every time."""
        ...

    def place(self, number: int) -> str:
        """Where a message stands, counted from 0; found by reading on from the beginning."""
        ...


class Limited:
    """The first so many messages of a source."""

    def __init__(self, source: Source, limit: int) -> None:
        self.title = f"{source.title} (the first {limit:,} messages)"
        self.same_order = source.same_order
        self._source = source
        self._limit = limit

    def messages(self) -> Iterator[Message]:
        """See `Source.messages`."""
        return islice(self._source.messages(), self._limit)

    def place(self, number: int) -> str:
        """See `Source.place`."""
        return self._source.place(number)


class StandardLibrary:
    """The running Python's standard library: one message a line, topic = top-level module."""

    same_order = "the lines of its files"

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or Path(sysconfig.get_path("stdlib"))
        self.files = sorted(
            path
            for path in self.root.rglob("*.py")
            if path.is_file()
            and not {"site-packages", "dist-packages"} & set(path.relative_to(self.root).parts)
        )
        self.title = f"the standard library in {self.root}, {len(self.files):,} files"

    def messages(self) -> Iterator[Message]:
        """See `Source.messages`: a file's lines stay together, in one queue of its topic."""
        seen: Counter[str] = Counter()
        for path in self.files:
            name = path.relative_to(self.root)
            topic = topic_name(name.parts[0].removesuffix(".py"))
            queue = seen[topic] % QUEUES
            seen[topic] += 1
            key = _SPACE.sub("_", name.as_posix())
            yield from _python_lines(path, topic, queue, key)

    def place(self, number: int) -> str:
        """See `Source.place`."""
        message = next(islice(self.messages(), number, None))
        return line_of(str(self.root / message.keys[0]), int(message.properties["line"]))


def _python_lines(path: Path, topic: str, queue: int, key: str) -> Iterator[Message]:
    keys = (key,)
    kinds = LineKinds()
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        indent = len(line) - len(line.lstrip())
        yield Message(
            topic=topic,
            body=line.encode(),
            queue=queue,
            tag=kinds.kind(line),
            keys=keys,
            properties={"line": str(number), "indent": str(indent)},
        )


class Lines:
    """The lines of files: JSON objects where a line is one, else plain text."""

    same_order = "the lines given"

    def __init__(self, files: Sequence[Path], title: str | None = None) -> None:
        self._files = files
        self.title = title or ", ".join(str(path) for path in files)

    def messages(self) -> Iterator[Message]:
        """See `Source.messages`: a topic's messages go to its queues in turn."""
        seen: Counter[str] = Counter()
        for path in self._files:
            topic = topic_name(path.stem)
            key = _SPACE.sub("_", path.name)
            with path.open("rb") as stream:
                for number, line in enumerate(stream, 1):
                    message = _from_line(line.removesuffix(b"\n"), topic, key, number)
                    message.queue = seen[message.topic] % QUEUES
                    seen[message.topic] += 1
                    yield message

    def place(self, number: int) -> str:
        """See `Source.place`."""
        for path in self._files:
            with path.open("rb") as stream:
                lines = sum(1 for _ in stream)
            if number < lines:
                return line_of(str(path), number + 1)
            number -= lines
        raise IndexError(number)


def _from_line(line: bytes, topic: str, key: str, number: int) -> Message:
    """One line as a message; a JSON object may say its body, topic, keys, tag and properties."""
    plain = Message(
        topic=topic, body=line, tag="text", keys=(key,), properties={"line": str(number)}
    )
    if not line.lstrip().startswith(b"{"):
        return plain
    try:
        said = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return plain
    body = said.get("body")
    properties = said.get("properties")
    named = said.get("keys") or said.get("key")
    keys = named if isinstance(named, list) else [] if named is None else [named]
    return Message(
        topic=topic_name(str(said["topic"])) if said.get("topic") else topic,
        body=line if body is None else _body_bytes(body),
        tag=_tag(said.get("tag")),
        keys=tuple(_SPACE.sub("_", _clean(k)) for k in keys if _clean(k).strip()) or (key,),
        properties=_properties(properties if isinstance(properties, dict) else {}, number),
    )


def _body_bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _tag(tag: Any) -> str:
    return _SPACE.sub("_", _clean(tag).strip().replace("|", "_")) or "json" if tag else "json"


def _properties(properties: dict[str, Any], number: int) -> dict[str, str]:
    """The properties that a record can hold (neither name nor value may be empty), and the line."""
    kept = {
        _clean(name): _clean(value) for name, value in properties.items() if name not in RESERVED
    }
    kept = {name: value for name, value in kept.items() if name and value}
    return {"line": str(number), **kept}


def _clean(value: Any) -> str:
    return _NOT_TEXT.sub(" ", value if isinstance(value, str) else str(value))


def topic_name(text: str) -> str:
    """Any text as a topic's name: what a name can't hold becomes `_`."""
    name = _NOT_TOPIC.sub("_", text)[:_TOPIC_MAX] or "lines"
    return f"{name}_" if name in SYSTEM_TOPICS else name
