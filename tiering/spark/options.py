"""Options: the settings of readers and writers of archives and stores.

The idea: Spark gives texts under names whose case does not count. Here they become one checked
value, which travels to the tasks. The fields' types say what a text must be.

Invariant: an unknown option is an error, not ignored: a filter that was spelled wrong would read
everything.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from kvstore.errors import ConfigError, shown
from kvstore.files import local_path
from tiering.archive.coder import CodecName
from tiering.archive.layout import BLOCK_BYTES_DEFAULT
from tiering.places.place import Place, open_place
from tiering.places.settings import is_remote, is_url
from tiering.policy.retention_classes import RetentionClass, read_class

PLACE: Final = "place."
"""The prefix of the settings of a place (docs/places.md)."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EVER: Final = RetentionClass("warm", None, None).name
_log = logging.getLogger("kvmq")

# A description ends the sentence "it must be ..." about a text that is not of the type.
Names = Annotated[tuple[str, ...], Meta(description="a list of texts")]
Flag = Annotated[bool, Meta(description="true or false")]
Level = Annotated[int, Meta(ge=0, description="0 or more")]
Positive = Annotated[int, Meta(ge=1, description="1 or more")]
BlockBytes = Annotated[int, Meta(ge=4096, description="4096 or more")]
LargeBytes = Annotated[int, Meta(ge=1 << 16, description="65536 or more")]
Damaged = Annotated[Literal["fail", "skip"], Meta(description="fail or skip")]
Codec = Annotated[CodecName, Meta(description="zstd or lz4")]
StoreId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z", description="32 hex digits, a-f small")]


class _PlaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every reader and writer."""

    path: str
    key_file: str | None = None
    place: dict[str, str] = {}

    def open(self, where: str | None = None) -> Place:
        """The place at the path, or another one (`where`) that is reached by the same settings."""
        where = where or self.path
        return open_place(where, options=self.place if is_remote(where) else None)


class ReadOptions(_PlaceOptions, frozen=True, kw_only=True):
    """See docs/spark.md. `topics` and `keys` None: all; `split_bytes` are bytes of records. The
    fields from `starting_offsets` on are for streams alone.
    """

    topics: Names | None = None
    columns: Names | None = None
    keys: Names | None = None
    store_id: str | None = None
    hot: Flag = True
    damaged: Damaged = "fail"
    split_bytes: Positive = 128 << 20
    starting_offsets: str = EARLIEST
    max_messages_per_trigger: Positive | None = None
    max_bytes_per_trigger: Positive | None = None
    fail_on_data_loss: Flag = True

    def leave_out(self, name: str, error: Exception) -> None:
        """Logs that something damaged is left out, or raises its error, as the options say."""
        if self.damaged == "fail":
            raise error
        _log.warning("left out: %s: %s", name, str(error))


class SinkOptions(_PlaceOptions, frozen=True, kw_only=True):
    """See docs/spark.md. `archive_bytes` are the bytes of an archive, about; `spill_bytes` are the
    bytes of records that a task has in memory before it uses its disk.
    """

    store_id: StoreId | None = None
    codec: Codec = "zstd"
    level: Level | None = None
    block_bytes: BlockBytes = BLOCK_BYTES_DEFAULT
    archive_bytes: LargeBytes = 512 << 20
    spill_bytes: LargeBytes = 64 << 20
    retention_class: str = _EVER
    query: str | None = None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options as Spark gives them. Raises ConfigError."""
    if "path" not in given:
        raise ConfigError(
            "nothing says what to read: give a store's folder, or a folder or bucket of archives, "
            "as load(path)"
        )
    return _converted(given, ReadOptions)


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options as Spark gives them. Raises ConfigError, PolicyIllegal."""
    if not given.get("path"):
        raise ConfigError(
            "nothing says where archives are to go: give a folder, or a bucket's URL, as save(path)"
        )
    # Two options of a stream are Spark's own.
    found = _converted(
        given, SinkOptions, of=" of writing", passed_over=("checkpointlocation", "queryname")
    )
    _check_folder(found.path)
    read_class(found.retention_class)
    return found


Options = TypeVar("Options", ReadOptions, SinkOptions)


def _converted(
    given: Mapping[str, str],
    kind: type[Options],
    *,
    of: str = "",
    passed_over: Collection[str] = (),
) -> Options:
    """The options by their fields, whatever case and underlines they are written with; `of` names
    the reader or writer in the error for an option that does not exist.
    """
    types = get_type_hints(kind, include_extras=True)
    del types["place"]
    known = {field.replace("_", ""): field for field in types}
    found: dict[str, Any] = {}
    place: dict[str, str] = {}
    for name, text in given.items():
        lower = name.lower()
        field = known.get(lower.replace("_", ""))
        if lower.startswith(PLACE):
            place[lower[len(PLACE) :]] = text
        elif field is not None:
            found[field] = _value(field, types[field], text)
        elif lower not in passed_over:
            raise ConfigError(
                f"there is no option {name!r}{of}; there are {', '.join(sorted(types))}, "
                f"and {PLACE}NAME for settings of a place"
            )
    if not is_url(found["path"]):
        found["path"] = str(local_path(found["path"], "what Spark reads or writes"))
    return kind(**found, place=place)


def _value(field: str, kind: Any, text: str) -> Any:
    if type(None) in get_args(kind):
        kind = get_args(kind)[0]
    try:
        return msgspec.convert(_listed(text) if kind == Names else text, kind, strict=False)
    except msgspec.ValidationError as e:
        must_be = kind.__metadata__[0].description
        raise ConfigError(f"option {field} is {shown(text)}; it must be {must_be}") from e


def _listed(text: str) -> object:
    """Names between commas; or a list in JSON, for names that have commas in them."""
    if not text.startswith("["):
        return [one.strip() for one in text.split(",") if one.strip()]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _check_folder(path: str) -> None:
    if is_url(path):
        return
    folder = Path(path)
    for store in (folder, folder.parent):
        if (store / "index").is_dir() and (store / "commitlog").is_dir():
            raise ConfigError(
                f"{path} is a store's: its catalog says which archives it has. Write to a folder "
                f"of its own, then `kvmq tier attach {store} FOLDER`"
            )
