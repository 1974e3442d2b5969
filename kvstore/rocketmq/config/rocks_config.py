"""Rocks config: RocketMQ's configuration in RocksDB, both its forms, as tables of plain JSON
values.

The idea: opening a RocksDB, even to read it, leaves files in its folder, so it is opened in a
temporary copy, read-only, and the source stays as it is. Both forms become the same three tables:
topics and groups by name, and per `topic@group` the offsets by queue id.

    version 1   config/topics, config/subscriptionGroups, config/consumerOffsets: a RocksDB each;
                key the name or topic@group, value JSON ({"offsetTable":{"0":3}} for offsets);
                family kvDataVersion counts the changes
    version 2   config/rdb: one RocksDB; key 01 | table 2 | 02 | rest
                topics (3), groups (4): rest = length 2, name; value = 01, JSON
                consumer offsets (1): rest = length 2, group, 01, length 2, topic, 01, queue id 4;
                value = offset 8

Invariants: nothing is written in the source's folder; whatever the folder holds gives tables or
FormatError. A log that was not closed is replayed, past broken entries, as RocketMQ does it.
"""

from __future__ import annotations

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
from kvstore.rocketmq.config.json_config import parse
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
    """Put one entry of version 2 into its table. Tables of other kinds are ignored."""
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
