"""Options: the settings of readers and writers of archives and stores.

The idea: Spark gives texts under names whose case does not count. Here they become one checked
value, which travels to the tasks.

Invariant: an unknown option is an error, not ignored: a filter that was spelled wrong would read
everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from kvstore.errors import ConfigError, shown
from kvstore.files import local_path
from tiering.archive.coder import CodecName
from tiering.archive.layout import BLOCK_BYTES_DEFAULT
from tiering.places.place import Place, open_place
from tiering.places.settings import is_remote
from tiering.policy.retention_classes import RetentionClass, read_class

PLACE: Final = "place."
"""The prefix of the settings of a place (docs/places.md)."""
SPLIT_BYTES: Final = 128 << 20
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_FLAGS: Final = {"true": True, "false": False}

Damaged = Literal["fail", "skip"]


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """See docs/spark.md. `topics` and `keys` None: all; `split_bytes` are bytes of records. The
    fields from `starting_offsets` on are for streams alone.
    """

    path: str
    topics: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    key_file: str | None = None
    store_id: str | None = None
    hot: bool = True
    damaged: Damaged = "fail"
    split_bytes: int = SPLIT_BYTES
    starting_offsets: str = EARLIEST
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    place: dict[str, str] = {}


_LISTS: Final = ("topics", "columns", "keys")
_SWITCHES: Final = ("hot", "fail_on_data_loss")
_LEAST: Final = {
    "split_bytes": 1, "max_messages_per_trigger": 1, "max_bytes_per_trigger": 1, "level": 0,
    "block_bytes": 4096, "archive_bytes": 1 << 16, "spill_bytes": 1 << 16,
}  # fmt: skip


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options as Spark gives them. Raises ConfigError."""
    fields, place = by_field(given, ReadOptions.__struct_fields__)
    found = {field: _parsed(field, value) for field, value in fields.items()}
    if "path" not in found:
        raise ConfigError(
            "nothing says what to read: give a store's folder, or a folder or bucket of archives, "
            "as load(path)"
        )
    found["path"] = at_home(str(found["path"]))
    return msgspec.convert({**found, "place": place}, ReadOptions)


def at_home(path: str) -> str:
    """A path with `~` as the home folder; a URL stays as it is. Raises CallerError."""
    return path if "://" in path else str(local_path(path, "what Spark reads or writes"))


def by_field(
    given: Mapping[str, str],
    fields: Iterable[str],
    *,
    of: str = "",
    passed_over: Collection[str] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """The options by the fields that they are for, whatever case and underlines they are written
    with, and the settings of a place. Raises ConfigError for an option that does not exist; `of`
    names the reader or writer in its text.
    """
    known = {field.replace("_", ""): field for field in fields if field != "place"}
    found: dict[str, str] = {}
    place: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        field = known.get(lower.replace("_", ""))
        if lower.startswith(PLACE):
            place[lower[len(PLACE) :]] = value
        elif field is not None:
            found[field] = value
        elif lower not in passed_over:
            raise ConfigError(
                f"there is no option {name!r}{of}; there are {', '.join(sorted(known.values()))}, "
                f"and {PLACE}NAME for settings of a place"
            )
    return found, place


def _parsed(name: str, value: str) -> object:
    if name in _LISTS:
        return _listed(name, value)
    if name in _SWITCHES:
        if value.lower() not in _FLAGS:
            raise ConfigError(f"option {name} is {shown(value)}; it must be true or false")
        return _FLAGS[value.lower()]
    if name in _LEAST:
        least = _LEAST[name]
        if not value.isascii() or not value.isdigit() or int(value) < least:
            raise ConfigError(f"option {name} is {shown(value)}; it must be {least} or more")
        return int(value)
    if name == "damaged" and value not in ("fail", "skip"):
        raise ConfigError(f"option damaged is {shown(value)}; it must be fail or skip")
    return value


def _listed(name: str, value: str) -> tuple[str, ...]:
    """Names between commas; or a list in JSON, for names that have commas in them."""
    if value.startswith("["):
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ConfigError(f"option {name} is {shown(value)}; it must be a list of texts")
        return tuple(found)
    return tuple(one.strip() for one in value.split(",") if one.strip())


# --- writing --------------------------------------------------------------------------------------


ARCHIVE_BYTES: Final = 512 << 20
SPILL_BYTES: Final = 64 << 20
_EVER: Final = RetentionClass("warm", None, None).name
_STORE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of a stream that are Spark's own."""


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """See docs/spark.md. `archive_bytes` are the bytes of an archive, about; `spill_bytes` are the
    bytes of records that a task has in memory before it uses its disk.
    """

    path: str
    store_id: str | None = None
    codec: CodecName = "zstd"
    level: int | None = None
    block_bytes: int = BLOCK_BYTES_DEFAULT
    archive_bytes: int = ARCHIVE_BYTES
    spill_bytes: int = SPILL_BYTES
    retention_class: str = _EVER
    key_file: str | None = None
    query: str | None = None
    place: dict[str, str] = {}

    def open(self) -> Place:
        """The place that archives go to."""
        return open_place(self.path, options=self.place if is_remote(self.path) else None)


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options as Spark gives them. Raises ConfigError, PolicyIllegal."""
    fields, place = by_field(
        given, SinkOptions.__struct_fields__, of=" of writing", passed_over=_SPARKS
    )
    found = {field: _parsed(field, value) for field, value in fields.items()}
    if not found.get("path"):
        raise ConfigError(
            "nothing says where archives are to go: give a folder, or a bucket's URL, as save(path)"
        )
    found["path"] = at_home(str(found["path"]))
    _check_folder(str(found["path"]))
    store_id, codec = found.get("store_id"), found.get("codec", "zstd")
    if store_id is not None and not _STORE_ID.fullmatch(str(store_id)):
        raise ConfigError(
            f"option store_id is {shown(store_id)}; it must be 32 hex digits, a-f small"
        )
    if codec not in ("zstd", "lz4"):
        raise ConfigError(f"option codec is {shown(codec)}; it must be zstd or lz4")
    read_class(str(found.get("retention_class", _EVER)))
    return msgspec.convert({**found, "place": place}, SinkOptions)


def _check_folder(path: str) -> None:
    if "://" in path:
        return
    folder = Path(path)
    for store in (folder, folder.parent):
        if (store / "index").is_dir() and (store / "commitlog").is_dir():
            raise ConfigError(
                f"{path} is a store's: its catalog says which archives it has. Write to a folder "
                f"of its own, then `kvmq tier attach {store} FOLDER`"
            )
