"""The verb `dump`: the content of files, read directly, without opening a store.

The idea: a store that doesn't open, or a file that came from elsewhere, must still be readable. So
nothing here needs an index, a lock or whole files: commit logs are walked past their damage, queue
files read unit by unit, and everything is printed as it comes, in memory that does not grow with
the file. `kvstore.rocketmq` reads, and `tiering.archive` reads archives, which need nothing else
but the keys of encrypted topics; this module chooses the records, and shows them.

Invariants: whatever the bytes, damage is shown and passed over, and nothing is written. Exit codes:
0 all good, 1 damage was shown or the wanted record is not there, 2 wrong usage, which includes a
file of no known kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from kvstore.cli.message.dump_show import BODY_SHOWN, Choice, Show, builtins_of
from kvstore.cli.terminal.options import LocalPath, keys_option
from kvstore.cli.terminal.output import Output, output_option
from kvstore.core.messages import StoredMessage
from kvstore.errors import ArchiveDamaged, FormatError, MessageNotFound
from kvstore.files import Files, LocalFiles
from kvstore.log.segments import named_position
from kvstore.record.walk import Kind
from kvstore.rocketmq.file_layouts import BATCH_UNIT_SIZE, QUEUE_UNIT_SIZE
from kvstore.rocketmq.kinds import FileKind, kind_of
from kvstore.rocketmq.log_files import log_files, read_log, read_record
from kvstore.rocketmq.side_files import (
    BatchEntry,
    QueueEntry,
    Unused,
    entry_at,
    first_offset,
    read_batch_queue,
    read_batch_units,
    read_checkpoint,
    read_header,
    read_items,
    read_units,
)
from tiering.archive.archive_check import (
    Problem,
    blocks,
    chosen,
    described,
    looks_like_archive,
    messages,
)
from tiering.archive.archive_reader import Archive
from tiering.archive.tail import FileSource
from tiering.keys.key_file import provider_of

_KINDS: Final = (*(kind.value for kind in FileKind), "archive")


class _FileGroup(NamedTuple):
    """Files that belong together, and their kind."""

    kind: FileKind
    paths: list[Path]


@click.command()
@click.argument(
    "paths", metavar="FILE...", nargs=-1, required=True,
    type=LocalPath(exists=True),
)  # fmt: skip
@click.option(
    "--kind", type=click.Choice(_KINDS), help="What the files are, if they don't show it."
)
@click.option("--position", type=click.IntRange(min=0), help="Only the record at that position.")
@click.option(
    "--offset", type=click.IntRange(min=0),
    help="Only that offset of a consume queue, followed into the log; or of --topic and --queue.",
)  # fmt: skip
@click.option("--topic", help="Only records of that topic; looks through the whole log.")
@click.option("--queue", type=click.IntRange(min=0), help="Only records of that queue.")
@click.option(
    "--commitlog", metavar="DIR", type=LocalPath(exists=True, file_okay=False),
    help="Where the log of a consume-queue file is. [default: ../../../commitlog]",
)  # fmt: skip
@click.option(
    "--from", "start", type=click.IntRange(min=0), default=0,
    help="Begin at that position of a log, or offset of a consume queue.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(min=0), help="Show at most that many records or entries."
)
@click.option(
    "--body", "body_max", metavar="BYTES", type=click.IntRange(min=0),
    help=f"Show that much of a body. [default: {BODY_SHOWN}; all with --json]",
)  # fmt: skip
@keys_option
@output_option
def dump(
    out: Output, paths: tuple[Path, ...], kind: str | None, position: int | None,
    offset: int | None, topic: str | None, queue: int | None, commitlog: Path | None,
    start: int, limit: int | None, body_max: int | None, keys_file: Path | None,
) -> None:  # fmt: skip
    """Print the contents of FILEs, without opening a store: log files, consume queues, index files
    and checkpoints, of kvmq or RocketMQ; or folders of them, or a whole store; or archives.

    Damaged parts are marked and passed over.
    """
    files = LocalFiles()
    show = Show(out, body_max)
    choice = Choice(topic, queue, offset, start, limit)
    archives = [path for path in paths if is_archive(path, kind, files)]
    groups = [_group(path, kind, files) for path in paths if path not in archives]
    if archives:
        dump_archives(show, archives, choice, position, files, keys_file, is_all=not groups)
    if not groups:
        show.summary()
    elif position is not None:
        _dump_position(show, groups, position, files)
    elif offset is not None and not choice.is_filter:
        _dump_offset(show, groups, offset, commitlog, files)
    elif choice.is_filter:
        _dump_chosen(show, groups, choice, files)
    else:
        for group in groups:
            _dump_group(show, group, choice, files)
        show.summary()
    if show.damaged:
        raise click.exceptions.Exit(1)


# --- the kinds of the files -------------------------------------------------------------------


def _group(path: Path, kind: str | None, files: Files) -> _FileGroup:
    """The named file, or the files of the named folder. Raises `click.UsageError`."""
    forced = FileKind(kind) if kind else None
    if not path.is_dir():
        found = forced or kind_of(path, files)
        if found is None:
            what = "is empty" if not files.size(path) else "is nothing that can be read here"
            raise click.UsageError(
                f"{path} {what}: neither log, consume queue, index file, checkpoint nor archive "
                f"(--kind overrules)"
            )
        return _FileGroup(found, [path])
    logs = log_files(path, files)
    if not logs:
        raise click.UsageError(
            f"{path} holds no log and no consume queue: no files named by 20 digits are in it, or "
            f"in {path / 'commitlog'}"
        )
    if logs[0].parent != path:
        return _FileGroup(FileKind.LOG, logs)
    named = [path / name for name in files.list_dir(path) if named_position(name) is not None]
    return _FileGroup(forced or kind_of(named[0], files) or FileKind.LOG, named)


def _logs_of(groups: Sequence[_FileGroup], option: str) -> list[Path]:
    """The log files among the named ones. Raises `click.UsageError` if there are none."""
    logs = [path for group in groups if group.kind is FileKind.LOG for path in group.paths]
    if not logs:
        raise click.UsageError(f"{option} needs a log: a log file, a commitlog folder or a store")
    return logs


# --- the parts to show ------------------------------------------------------------------------


def _dump_position(show: Show, groups: Sequence[_FileGroup], position: int, files: Files) -> None:
    extent = read_record(_logs_of(groups, "--position"), files, position)
    if extent is None:
        raise MessageNotFound(f"no file of those given has position {position}")
    show.extent(extent)
    if extent.found.position != position and extent.found.kind is not Kind.DAMAGE:
        show.damage(extent.path, position, 0, f"nothing begins at {position}, it is in the above")


def _dump_chosen(show: Show, groups: Sequence[_FileGroup], choice: Choice, files: Files) -> None:
    """Shows the chosen records of the log."""
    logs = _logs_of(groups, "--topic or --queue")
    total = sum(files.size(path) or 0 for path in logs)
    done = found = 0
    with show.out.progress() as report:
        for extent in read_log(logs, files, choice.start):
            done += extent.found.size
            report("looking through the log", done, total)
            if extent.found.kind is Kind.DAMAGE:
                show.extent(extent)
            elif extent.message is not None and choice.takes(extent.message):
                if found == choice.limit:
                    return
                found += 1
                show.extent(extent)
                if choice.is_one_message:
                    return
    if not found and choice.limit != 0:
        raise MessageNotFound(
            f"the log holds no record of topic {choice.topic or '(any)'}, queue "
            f"{'(any)' if choice.queue is None else choice.queue}"
            + (f", offset {choice.offset}" if choice.offset is not None else "")
        )


def _dump_offset(
    show: Show, groups: Sequence[_FileGroup], offset: int, commitlog: Path | None, files: Files
) -> None:
    """One entry of a consume queue, and the record it points to."""
    for group in groups:
        if group.kind not in (FileKind.QUEUE, FileKind.BATCH_QUEUE):
            raise click.UsageError(
                "--offset needs a consume-queue file, or --topic and --queue to look for in a log"
            )
        for path in group.paths:
            entry = _find_entry(path, group.kind, offset, files)
            if entry is not None:
                show.entry(path, entry)
                _follow(show, path, entry, commitlog, files)
                return
    raise MessageNotFound(f"no file of those given has an entry for offset {offset}")


def _find_entry(
    path: Path, kind: FileKind, offset: int, files: Files
) -> QueueEntry | BatchEntry | None:
    if kind is FileKind.QUEUE:
        return entry_at(path, files, offset)
    entries = read_batch_queue(path, files)
    return next((e for e in entries if e.offset <= offset < e.offset + e.count), None)


def _follow(
    show: Show,
    path: Path,
    entry: QueueEntry | BatchEntry,
    commitlog: Path | None,
    files: Files,
) -> None:
    """Shows the record that an entry points to, and the fields in which the two disagree."""
    folder = commitlog or (path.parent / "../../../commitlog").resolve()
    logs = log_files(folder, files)
    if not logs:
        if commitlog is not None:
            raise click.UsageError(f"{commitlog} holds no log files, which are named by 20 digits")
        click.echo(f"{folder} holds no log; --commitlog says where it is", err=True)
        return
    extent = read_record(logs, files, entry.position)
    if extent is None:
        show.damage(path, entry.position, 0, f"no file of {folder} has position {entry.position}")
        return
    show.extent(extent)
    found = extent.found
    if (found.position, found.size) != (entry.position, entry.size):
        show.damage(
            path, entry.position, 0,
            f"the entry means {entry.size} bytes at {entry.position}, but in the log there are "
            f"{found.size} at {found.position}",
        )  # fmt: skip
    elif extent.message is not None and extent.message.offset != entry.offset:
        reason = f"the entry of offset {entry.offset} means a record of {extent.message.offset}"
        show.damage(path, entry.position, 0, reason)


def _dump_group(show: Show, group: _FileGroup, choice: Choice, files: Files) -> None:
    if group.kind is FileKind.LOG:
        for extent in read_log(group.paths, files, choice.start):
            if extent.found.kind is Kind.RECORD and show.records == choice.limit:
                return
            show.extent(extent)
        return
    readers: dict[FileKind, Callable[[Show, Path, Choice, Files], None]] = {
        FileKind.QUEUE: _dump_queue,
        FileKind.BATCH_QUEUE: _dump_batch_queue,
        FileKind.INDEX: _dump_index,
        FileKind.CHECKPOINT: _dump_checkpoint,
    }
    for path in group.paths:
        readers[group.kind](show, path, choice, files)


def _dump_queue(show: Show, path: Path, choice: Choice, files: Files) -> None:
    first = None
    try:
        first_offset(path)
    except FormatError as e:
        show.damage(path, -1, 0, f"{e}; offsets are counted from 0 here")
        first = 0
    _show_units(show, path, read_units(path, files, first), choice, QUEUE_UNIT_SIZE)


def _dump_batch_queue(show: Show, path: Path, choice: Choice, files: Files) -> None:
    _show_units(show, path, read_batch_units(path, files), choice, BATCH_UNIT_SIZE)


def _show_units(
    show: Show, path: Path, units: Iterable[Any], choice: Choice, unit_size: int
) -> None:
    for unit in units:
        if isinstance(unit, Unused):
            if unit.reason == "invalid":
                reason = f"{unit.units} units at byte {unit.at} are no entries"
                show.damage(path, -1, unit.units * unit_size, reason)
            elif unit.reason == "partial":
                reason = (
                    f"the file ends within a unit: its last {unit.units} bytes are a part of one"
                )
                show.damage(path, -1, unit.units, reason)
            else:
                show.unused(path, unit.at, unit.units, unit.reason)
        elif unit.offset >= choice.start:
            if show.entries == choice.limit:
                return
            show.entry(path, unit)


def _dump_index(show: Show, path: Path, choice: Choice, files: Files) -> None:
    header = read_header(path, files)
    show.fields(path, "index", builtins_of(header))
    wanted = (item for item in read_items(path, files) if item.number >= choice.start)
    for item in islice(wanted, choice.limit):
        show.fields(path, "item", builtins_of(item))


def _dump_checkpoint(show: Show, path: Path, _choice: Choice, files: Files) -> None:
    show.fields(path, "checkpoint", builtins_of(read_checkpoint(path, files)))


_ENDS_LOOKED_AT = 8


def is_archive(path: Path, kind: str | None, files: Files) -> bool:
    """Whether a file is an archive, maybe a damaged one, or `--kind` says so."""
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
    """Shows archives: all of them, or the chosen messages.

    Raises FormatTooNew; and MessageNotFound if `is_all` (there are no other files) and no message
    was chosen.
    """
    keys = provider_of(keys_file, files)
    is_found = False
    for path in paths:
        try:
            archive = Archive.open(FileSource(path, files), keys=keys)
            if position is not None:
                is_found |= _dump_archived_position(show, path, position, archive)
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
        for found in _chosen_messages(archive, number, choice):
            if show.records == choice.limit:
                return
            _show(show, path, found)


def _dump_archived_position(show: Show, path: Path, position: int, archive: Archive) -> bool:
    """False if the archive has no message at that position."""
    place = archive.locate(position)
    if place is not None:
        for found in messages(archive, place[0]):
            if isinstance(found, Problem) or found.position == position:
                _show(show, path, found)
    return place is not None


def _chosen_messages(
    archive: Archive, number: int, choice: Choice
) -> Iterator[StoredMessage | Problem]:
    directory = archive.directory
    first = choice.start if choice.offset is None else choice.offset
    if directory.last_offset(number) < first:
        return
    for found in messages(archive, number, first):
        if isinstance(found, StoredMessage) and choice.offset not in {None, found.offset}:
            return
        yield found


def _show(show: Show, path: Path, found: StoredMessage | Problem) -> None:
    if isinstance(found, StoredMessage):
        show.message(path, found)
    else:
        show.damage(path, -1, 0, found.reason)
