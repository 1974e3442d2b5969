"""The verb `dump` for archives: manifest, blocks, messages.

The idea: `tiering.archive.dump` goes through the archive, the verb's own `show` prints. The file
alone is enough to read all of it, except encrypted topics, which need their keys.

Invariant: as for the verb, damage is shown and skipped, and nothing is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.errors import ArchiveDamaged, MessageNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvstore.cli.message.dump_show import Choice, Show
    from kvstore.files import Files
    from kvstore.record.values import StoredMessage
    from tiering.archive.archive_reader import Archive
    from tiering.archive.check import Problem

_ENDS_LOOKED_AT = 8


def is_archive(path: Path, kind: str | None, files: Files) -> bool:
    """Whether a file is an archive, maybe a damaged one, or `--kind` says so."""
    from tiering.archive.dump import looks_like_archive

    if kind is not None or path.is_dir():
        return kind == "archive"
    size = files.size(path) or 0
    head = files.read(path, 0, _ENDS_LOOKED_AT)
    end = files.read(path, max(size - _ENDS_LOOKED_AT, 0), _ENDS_LOOKED_AT)
    return looks_like_archive(head, end)


def dump_archives(
    show: Show,
    paths: Sequence[Path],
    choice: Choice,
    position: int | None,
    files: Files,
    keys_file: Path | None,
    *,
    is_all: bool,
) -> None:
    """Show archives: all of them, or the chosen messages.

    Raises FormatTooNew; and MessageNotFound if `is_all` (there are no other files) and no message
    was chosen.
    """
    from tiering.archive.archive_reader import Archive
    from tiering.archive.tail import FileSource
    from tiering.keys.sources import provider_of

    keys = provider_of(keys_file, files)
    is_found = False
    for path in paths:
        try:
            archive = Archive.open(FileSource(path, files), keys=keys)
            if position is not None:
                is_found |= _dump_position(show, path, position, archive)
            else:
                _dump_archive(show, path, choice, archive)
        except ArchiveDamaged as error:
            show.damage(path, -1, 0, str(error))
    if not is_all or show.damaged:
        return
    if position is not None and not is_found:
        raise MessageNotFound(f"no archive of those given has position {position}")
    if position is None and choice.is_filter and not show.records and choice.limit != 0:
        raise MessageNotFound("no archive of those given has such a message")


def _dump_archive(show: Show, path: Path, choice: Choice, archive: Archive) -> None:
    from tiering.archive.dump import blocks, chosen, described

    if not choice.is_filter:
        fields = described(archive)
        topics = fields.pop("topics")
        show.fields(path, "archive", fields)
        for topic in topics:
            topic["topic_kind"] = topic.pop("kind")  # `kind` is the subject of the line
            show.fields(path, "topic", topic)
        for block in blocks(archive):
            show.fields(path, "block", block)
    for number in chosen(archive, choice.topic, choice.queue):
        for found in _meant(archive, number, choice):
            if show.records == choice.limit:
                return
            _show(show, path, found)


def _dump_position(show: Show, path: Path, position: int, archive: Archive) -> bool:
    """False if the archive has no message at that position."""
    from tiering.archive.check import Problem
    from tiering.archive.dump import messages

    place = archive.locate(position)
    if place is not None:
        for found in messages(archive, place[0]):
            if isinstance(found, Problem) or found.position == position:
                _show(show, path, found)
    return place is not None


def _meant(archive: Archive, number: int, choice: Choice) -> Iterator[StoredMessage | Problem]:
    from kvstore.record.values import StoredMessage
    from tiering.archive.dump import messages

    directory = archive.directory
    first = choice.start if choice.offset is None else choice.offset
    if directory.last_offset(number) < first:
        return
    for found in messages(archive, number, first):
        if isinstance(found, StoredMessage) and choice.offset not in {None, found.offset}:
            return
        yield found


def _show(show: Show, path: Path, found: StoredMessage | Problem) -> None:
    from kvstore.record.values import StoredMessage

    if isinstance(found, StoredMessage):
        show.message(path, found)
    else:
        show.damage(path, -1, 0, found.reason)
