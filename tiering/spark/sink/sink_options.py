"""Options: the settings of a writer of archives.

The idea: as for readers (`tiering.spark.options`): texts become one checked value, which travels to
the tasks.

Invariant: an unknown option is an error, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from kvstore.errors import ConfigError, shown
from tiering.archive.coder import CodecName
from tiering.archive.layout import BLOCK_BYTES_DEFAULT
from tiering.places.place import Place, open_place
from tiering.places.settings import is_remote
from tiering.policy.retention_classes import RetentionClass, read_class
from tiering.spark.options import at_home, by_field

ARCHIVE_BYTES: Final = 512 << 20
SPILL_BYTES: Final = 64 << 20
_EVER: Final = RetentionClass("warm", None, None).name
_STORE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of a stream that are Spark's own."""
_LEAST: Final = {"level": 0, "block_bytes": 4096, "archive_bytes": 1 << 16, "spill_bytes": 1 << 16}


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
    read_class(str(found.get("retention_class", _EVER)))
    try:
        return msgspec.convert({**found, "place": place}, SinkOptions)
    except msgspec.ValidationError as e:
        raise ConfigError(f"an option of writing can't be: {e}") from e


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


def _parsed(name: str, value: str) -> object:
    if name in _LEAST:
        least = _LEAST[name]
        digits = value.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or int(value) < least:
            raise ConfigError(f"option {name} is {shown(value)}; it must be {least} or more")
        return int(value)
    if name == "store_id" and not _STORE_ID.fullmatch(value):
        raise ConfigError(f"option store_id is {shown(value)}; it must be 32 hex digits, a-f small")
    if name == "codec" and value not in ("zstd", "lz4"):
        raise ConfigError(f"option codec is {shown(value)}; it must be zstd or lz4")
    return value
