"""Configuration: all of a store's configuration, read from the form that counts, and merged.

The idea: a broker keeps topics, groups and consumer offsets in JSON files or in RocksDB, and when
it went from the one to the other both are there. This module decides as the broker does when it
starts: version 2 of RocksDB counts alone; in version 1 the rows of a JSON file replace those of
RocksDB where the file was changed more often. Progress of delay levels is in a JSON file in all of
them. All forms become the same three tables: topics and groups by name, and per `topic@group` the
offsets by queue id.

    JSON        config/*.json: read as leniently as fastjson does, which writes a map with integer
                keys as {0:3,1:5}; RocketMQ moves a file to NAME.bak before it writes it anew, so
                the .bak counts when the file is missing, empty or broken
    version 1   config/topics, config/subscriptionGroups, config/consumerOffsets: a RocksDB each;
                key the name or topic@group, value JSON ({"offsetTable":{"0":3}} for offsets);
                family kvDataVersion counts the changes
    version 2   config/rdb: one RocksDB; key 01 | table 2 | 02 | rest
                topics (3), groups (4): rest = length 2, name; value = 01, JSON
                consumer offsets (1): rest = length 2, group, 01, length 2, topic, 01, queue id 4;
                value = offset 8

Opening a RocksDB, even to read it, leaves files in its folder, so it is opened in a temporary copy,
read-only. A log that was not closed is replayed, past broken entries, as RocketMQ does it.

Invariants: nothing is changed or created in the source; any bytes give tables or a FormatError, and
a broken file is never taken for an empty table.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from rocksdict import AccessType, DBRecoveryMode, Options, Rdict

from kvstore.errors import FormatError
from kvstore.files import Files
from kvstore.rocketmq.config_values import (
    ConfigKind,
    Configuration,
    Offset,
    convert,
    group_of,
    topic_of,
)
from kvstore.rocketmq.file_layouts import (
    CONFIG_GROUPS,
    CONFIG_OFFSETS,
    CONFIG_TOPICS,
    CONFIG_V2,
    DATA_VERSION_FAMILY,
    DATA_VERSION_KEY,
    ROCKSDB_CURRENT,
    TOPIC_GROUP_JOINER,
    V2_CONSUMER_OFFSETS,
    V2_GROUPS,
    V2_JOINER,
    V2_JSON,
    V2_NAME_SIZE,
    V2_OFFSET,
    V2_PREFIX,
    V2_QUEUE,
    V2_RECORD,
    V2_TABLE_PREFIX,
    V2_TOPICS,
)

_TOPICS: Final = ("topics.json", "topicConfigTable")
_GROUPS: Final = ("subscriptionGroup.json", "subscriptionGroupTable")
_OFFSETS: Final = ("consumerOffset.json", "offsetTable")
_DELAY_OFFSETS: Final = ("delayOffset.json", "offsetTable")
_VERSION: Final = "dataVersion"


def read_configuration(folder: Path, files: Files) -> Configuration:
    """Reads a store's `config` folder, which may be missing or empty."""
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


def _offsets(table: Table | None, where: str, notes: list[str]) -> list[Offset]:
    """(group, topic, queue, offset), sorted."""
    offsets: list[Offset] = []
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
    """A value of lax JSON as strict JSON; the decoder refuses text that this can't understand."""
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
    """Adds one token in its strict form."""
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


_DEFAULT_FAMILY: Final = "default"
Rows = dict[str, Any]


class Table(msgspec.Struct):
    """Names and their JSON values; `version` is how often the table was changed."""

    rows: Rows
    version: int = 0


class Tables(msgspec.Struct):
    """The tables of a form of configuration. None: the form has no such table at all.

    `notes` lists the parts that could not be taken.
    """

    topics: Table | None = None
    groups: Table | None = None
    offsets: Table | None = None
    notes: list[str] = []


def is_rocksdb(folder: Path, files: Files) -> bool:
    """Whether a RocksDB is in the folder."""
    return files.size(folder / ROCKSDB_CURRENT) is not None


def read_v1(config: Path, files: Files) -> Tables | None:
    """The tables of version 1; None if none of its three databases is there."""
    tables = Tables()
    tables.topics = _read_v1_table(config / CONFIG_TOPICS, files)
    tables.groups = _read_v1_table(config / CONFIG_GROUPS, files)
    tables.offsets = _read_v1_table(config / CONFIG_OFFSETS, files)
    if tables.offsets is not None:
        rows = tables.offsets.rows
        tables.offsets.rows = {name: _offsets_of(value) for name, value in rows.items()}
    found = (tables.topics, tables.groups, tables.offsets)
    return tables if any(table is not None for table in found) else None


def read_v2(config: Path, files: Files) -> Tables | None:
    """The tables of version 2; None if its database is not there."""
    folder = config / CONFIG_V2
    if not is_rocksdb(folder, files):
        return None
    tables = Tables(Table({}), Table({}), Table({}))
    for key, value in _read_families(folder, files)[_DEFAULT_FAMILY]:
        try:
            _add_v2(tables, key, value)
        except (FormatError, UnicodeDecodeError, struct.error, IndexError) as e:
            tables.notes.append(f"{folder}: key {key.hex()} can't be understood, passed over: {e}")
    return tables


def counter_of(data_version: Any) -> int:
    """How often a table was changed, from the JSON that RocketMQ calls its data version."""
    counter = data_version.get("counter") if isinstance(data_version, dict) else None
    return counter if isinstance(counter, int) else 0


def _read_v1_table(folder: Path, files: Files) -> Table | None:
    if not is_rocksdb(folder, files):
        return None
    families = _read_families(folder, files)
    table = Table({})
    for key, value in families[_DEFAULT_FAMILY]:
        name = key.decode("utf-8", "replace")
        table.rows[name] = parse(value, f"{folder}, key {name}")
    for key, value in families.get(DATA_VERSION_FAMILY, ()):
        if key == DATA_VERSION_KEY:
            table.version = counter_of(parse(value, f"{folder}, its data version"))
    return table


def _offsets_of(value: Any) -> Any:
    return value.get("offsetTable") if isinstance(value, dict) else None


def _add_v2(tables: Tables, key: bytes, value: bytes) -> None:
    """Puts one entry of version 2 into its table. Tables of other kinds are ignored."""
    prefix, table, kind = V2_PREFIX.unpack_from(key)
    if prefix != V2_TABLE_PREFIX or kind != V2_RECORD:
        return
    at = V2_PREFIX.size
    if table == V2_TOPICS and tables.topics is not None:
        name, _ = _name_at(key, at)
        tables.topics.rows[name] = _v2_json(value, name)
    elif table == V2_GROUPS and tables.groups is not None:
        name, _ = _name_at(key, at)
        tables.groups.rows[name] = _v2_json(value, name)
    elif table == V2_CONSUMER_OFFSETS and tables.offsets is not None:
        group, at = _name_at(key, at)
        topic, at = _name_at(key, _behind_joiner(key, at))
        (queue,) = V2_QUEUE.unpack_from(key, _behind_joiner(key, at))
        (offset,) = V2_OFFSET.unpack(value)
        name = f"{topic}{TOPIC_GROUP_JOINER}{group}"
        tables.offsets.rows.setdefault(name, {})[queue] = offset


def _name_at(key: bytes, at: int) -> tuple[str, int]:
    """A length and that many bytes of name; and the index behind them."""
    (size,) = V2_NAME_SIZE.unpack_from(key, at)
    at += V2_NAME_SIZE.size
    if at + size > len(key):
        raise FormatError(f"a name of {size} bytes does not fit the {len(key) - at} that are left")
    return key[at : at + size].decode(), at + size


def _behind_joiner(key: bytes, at: int) -> int:
    if key[at] != V2_JOINER:
        raise FormatError(f"byte {at} should be {V2_JOINER}, but is {key[at]}")
    return at + 1


def _v2_json(value: bytes, name: str) -> Any:
    if value[0] != V2_JSON:
        raise FormatError(
            f"the value of {name} has the unknown encoding {value[0]}, JSON is {V2_JSON}"
        )
    return parse(value[1:], f"the value of {name}")


def _read_families(folder: Path, files: Files) -> dict[str, list[tuple[bytes, bytes]]]:
    """Every key and value of every column family, read from a copy of the folder."""
    with tempfile.TemporaryDirectory(prefix="kvmq-config-") as temporary:
        copy = Path(temporary) / folder.name
        _copy(folder, copy, files)
        try:
            return _read_all(copy)
        except Exception as e:  # rocksdict raises no narrower class
            raise FormatError(
                f"{folder} can't be read as RocksDB: {e}; if the broker is running, stop it first"
            ) from e


def _read_all(folder: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    names = Rdict.list_cf(str(folder))
    options = Options(raw_mode=True)
    # This is RocketMQ's own mode; with the usual mode a crash could lose more than it loses there.
    options.set_wal_recovery_mode(DBRecoveryMode.skip_any_corrupted_record())
    db = Rdict(
        str(folder),
        options,
        column_families={name: Options(raw_mode=True) for name in names},
        # Without False an unclosed log is an error, and a crash leaves one.
        access_type=AccessType.read_only(False),
    )
    try:
        return {name: list(_items(db, name)) for name in names}
    finally:
        db.close()


def _items(db: Rdict, family: str) -> Iterator[tuple[bytes, bytes]]:
    for key, value in db.get_column_family(family).items():
        assert isinstance(key, bytes), "raw mode gives bytes"
        yield key, value


def _copy(source: Path, target: Path, files: Files) -> None:
    files.make_dir(target)
    for name in files.list_dir(source):
        if files.size(source / name):
            with suppress(IsADirectoryError):  # RocksDB itself makes no folders in its folder
                files.copy(source / name, target / name)
        else:
            files.write_whole(target / name, b"")
