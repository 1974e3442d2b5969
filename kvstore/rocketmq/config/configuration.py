"""Configuration: all of a store's configuration, read from the form that counts, and merged.

The idea: a broker keeps topics, groups and consumer offsets in JSON files or in RocksDB, and when
it went from the one to the other both are there. This module decides as the broker does when it
starts: version 2 of RocksDB counts alone; in version 1 the rows of a JSON file replace those of
RocksDB where the file was changed more often. Progress of delay levels is in a JSON file in all of
them.

Invariants: nothing is changed or created in the source; a broken file is a FormatError, never an
empty table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from kvstore.files import Files
from kvstore.rocketmq.config.config_values import (
    ConfigKind,
    SourceGroup,
    SourceTopic,
    convert,
    group_of,
    topic_of,
)
from kvstore.rocketmq.config.json_config import BACKUP, read_config
from kvstore.rocketmq.config.rocks_config import Rows, Table, Tables, counter_of, read_v1, read_v2
from kvstore.rocketmq.file_layouts import TOPIC_GROUP_JOINER

_TOPICS: Final = ("topics.json", "topicConfigTable")
_GROUPS: Final = ("subscriptionGroup.json", "subscriptionGroupTable")
_OFFSETS: Final = ("consumerOffset.json", "offsetTable")
_DELAY_OFFSETS: Final = ("delayOffset.json", "offsetTable")
_VERSION: Final = "dataVersion"


class Configuration(msgspec.Struct, frozen=True):
    """The configuration in a folder; the fields are those of `RocketMQSource`."""

    kind: ConfigKind
    topics: list[SourceTopic]
    groups: list[SourceGroup]
    offsets: list[tuple[str, str, int, int]]
    delay_offsets: dict[int, int]
    notes: list[str]


def read_configuration(folder: Path, files: Files) -> Configuration:
    """Read a store's `config` folder, which may be missing or empty."""
    notes: list[str] = []
    kind, tables = _tables(folder, files, notes)
    notes += tables.notes
    delays = _json_table(folder, _DELAY_OFFSETS, files, notes)
    where = f"{folder} ({kind})"
    return Configuration(
        kind,
        [topic_of(name, row, where) for name, row in _rows(tables.topics)],
        [group_of(name, row, where) for name, row in _rows(tables.groups)],
        _offsets(tables.offsets, where, notes),
        convert(delays.rows if delays else {}, dict[int, int], f"{folder}/{_DELAY_OFFSETS[0]}"),
        notes,
    )


def _tables(folder: Path, files: Files, notes: list[str]) -> tuple[ConfigKind, Tables]:
    """The form that counts, and its tables."""
    tables = read_v2(folder, files)
    if tables is not None:
        return "rocksdb-v2", tables
    tables = read_v1(folder, files)
    topics = _json_table(folder, _TOPICS, files, notes)
    groups = _json_table(folder, _GROUPS, files, notes)
    offsets = _json_table(folder, _OFFSETS, files, notes)
    if tables is not None:
        tables.topics = _merged(tables.topics, topics)
        tables.groups = _merged(tables.groups, groups)
        tables.offsets = _merged(tables.offsets, offsets)
        return "rocksdb", tables
    found = topics or groups or offsets
    return "json" if found else "none", Tables(topics, groups, offsets)


def _merged(table: Table | None, over: Table | None) -> Table | None:
    """The broker takes rows of a JSON file into RocksDB if the file was changed more often."""
    if table is None or over is None:
        return table or over
    rows = {**table.rows, **over.rows} if over.version > table.version else table.rows
    return Table(rows, max(table.version, over.version))


def _json_table(
    folder: Path, file: tuple[str, str], files: Files, notes: list[str]
) -> Table | None:
    """One table of a JSON file; None if there is no such file."""
    name, field = file
    found = read_config(folder / name, files)
    if found is None:
        return None
    value, from_backup = found
    if from_backup:
        notes.append(f"{folder / name} is missing, empty or broken: {name}{BACKUP} was taken")
    whole = convert(value, dict[str, Any], str(folder / name))
    rows = convert(whole.get(field) or {}, Rows, f"{folder / name}, {field}")
    return Table(rows, counter_of(whole.get(_VERSION)))


def _rows(table: Table | None) -> list[tuple[str, Any]]:
    return sorted(table.rows.items()) if table is not None else []


def _offsets(table: Table | None, where: str, notes: list[str]) -> list[tuple[str, str, int, int]]:
    """(group, topic, queue, offset), sorted."""
    offsets: list[tuple[str, str, int, int]] = []
    for name, row in _rows(table):
        topic, joiner, group = name.partition(TOPIC_GROUP_JOINER)
        if not (topic and group and joiner) or TOPIC_GROUP_JOINER in group:
            notes.append(f"{where}: offsets of {name!r} passed over: not a topic@group")
            continue
        by_queue = convert(row or {}, dict[int, int], f"{where}, offsets of {name}")
        for queue, offset in by_queue.items():
            if queue < 0 or offset < 0:
                notes.append(f"{where}: offset {offset} of {name}, queue {queue}, passed over")
            else:
                offsets.append((group, topic, queue, offset))
    return sorted(offsets)
