"""Configuration: the settings of a store, each with its unit and default.

The idea: one frozen Struct, checked once when it is made, loadable from TOML. A setting that is
fixed when a store is created (`segment_size`) is taken from an existing store.
"""

from __future__ import annotations

import math
import socket
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kvstore.clock import Clock, SystemClock
from kvstore.errors import (
    ConfigError,
    shown,
)
from kvstore.files import Files, LocalFiles, local_path

_NUMBERS: Final = {
    "cache_bytes": (0, 1 << 62),
    "open_bytes": (0, 1 << 62),
    "readers": (1, 256),
    "read_ahead": (0, 256),
}
_KEYS: Final = ("key_for_writing", "key_for_reading")


class ArchiveAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How archives are reached; `StoreConfig.archives`, in TOML the table `[archives]`.

    `keys`: the keys of encrypted topics, as the path of a key file or, given by a program, a
    `tiering.KeyProvider`; None: encrypted messages can't be read. `options` are settings of object
    stores (docs/places.md); a folder gets none of them.

    The cache has `cache_bytes` of decoded blocks. Archives stay open while their directories and
    filters take at most `open_bytes`; filters alone, for look-ups by key, get as many bytes again.
    One block and one archive are kept whatever their size. At most `readers` reads are under way at
    once. A reader that goes on where it stopped gets `read_ahead` blocks before it asks."""

    keys: Any = None
    options: dict[str, Any] = {}
    cache_bytes: int = 64 << 20
    open_bytes: int = 256 << 20
    readers: int = 4
    read_ahead: int = 2

    def __post_init__(self) -> None:
        _check_keys(self.keys)
        _check_options(self.options)
        for name, (least, most) in _NUMBERS.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ConfigError(
                    f"archives.{name} is {shown(value)}; it must be a whole number, {least} to "
                    f"{most}"
                )

    def __repr__(self) -> str:
        given = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name != "options" and getattr(self, name) is not None
        }
        fields = [f"{name}={value!r}" for name, value in given.items()]
        return f"ArchiveAccess({', '.join([*fields, f'options={sorted(self.options)}'])})"

    def with_given(
        self, keys: object | None = None, options: Mapping[str, object] | None = None
    ) -> ArchiveAccess:
        """A copy of these settings with other keys, if any are given, and with these options before
        its own.
        """
        return msgspec.structs.replace(
            self,
            keys=self.keys if keys is None else keys,
            options={**self.options, **(options or {})},
        )

    def check_there(self, files: Files) -> None:
        """Raises `ConfigError` if the key file is named, and is not there: without this a mistyped
        name would look as if all keys were destroyed.
        """
        if isinstance(self.keys, str | Path) and files.size(local_path(self.keys, "keys")) is None:
            raise ConfigError(
                f"archives.keys is {str(self.keys)!r}, and no file is there; a first key is "
                "made by tiering.KeyFile(path).make(topic)"
            )


def _check_keys(keys: object) -> None:
    if keys is None or (isinstance(keys, str | Path) and str(keys) and "\0" not in str(keys)):
        return
    missing = [name for name in _KEYS if not callable(getattr(keys, name, None))]
    if missing:
        raise ConfigError(
            f"archives.keys is {shown(keys)}; it must be None, the path of a key file, or a "
            f"tiering.KeyProvider, which has {', '.join(_KEYS)}"
        )


def _check_options(options: object) -> None:
    # The options' values are not shown: secrets are among them.
    if not isinstance(options, dict) or not all(isinstance(n, str) and n for n in options):
        raise ConfigError(
            f"archives.options is a {type(options).__name__}; it must be a dict of settings by name"
        )


KeyIndex = Literal["all", "unique", "off"]
Codec = Literal["zlib", "lz4", "zstd"]

SEGMENT_SIZE_MIN = 64 << 10
SEGMENT_SIZE_MAX = 4 << 30
"""Positions inside a segment are stored in 4 bytes."""
QUEUES_MAX: Final = 1 << 16
"""Queues of a topic."""
QUEUES_DEFAULT: Final = 4
"""Queues of a topic if no number is given: by a call, on the command line, at a put."""


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long messages are kept. Durations are in seconds; None means no limit of that kind.

    `hot_for`: as raw segments; `warm_for`, `cold_for`: as archives, after that; `max_bytes`: total
    size of the raw segments, the oldest go first."""

    hot_for: float | None = None
    warm_for: float | None = None
    cold_for: float | None = None
    max_bytes: int | None = None


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a store. Sizes are bytes, durations seconds.

    Log: `segment_size` (64 KiB to 4 GiB; fixed when the store is created). `flush` "async" returns
    at once and syncs every `flush_interval` seconds when at least `flush_dirty_bytes` are dirty,
    and everything every `flush_thorough_interval`; "sync" waits for the disk. `visibility`
    "written" shows readers a message as soon as it is written, "flushed" only when it is on disk.
    `write_mode` "mapped" writes into the mapped file; "staged" collects in one of two memory
    buffers that are swapped at `stage_bytes`, `stage_count` messages or `stage_interval`. So with
    "staged" a put that did not wait for the flush may still be in this process's memory: a crash of
    the process loses at most the messages of the last `stage_interval` (or `stage_bytes`, or
    `stage_count`). Those are the newest ones, without gaps.
    `busy_timeout`: how long a put waits for the write lock before `StoreBusy`.

    Messages: `max_body` and `max_properties` limit a message (RocketMQ's 4 MiB and 32,767). Bodies
    above `compress_above` bytes (None: never) are compressed with `compression`. `check_crc` checks
    bodies when read; `property_crc` writes a CRC over the whole record into it,
    `check_property_crc` has recovery and reads demand it. `host`, `port` are what records carry as
    store and born host. Times to deliver or expire at are from 2000 to 2100, since others are
    mostly in a wrong unit; `any_time` takes those from 1970 to 2286 as well.

    Index: `checkpoint_bytes` of log, or `checkpoint_interval`, are between two checkpoints.
    `key_index` is the default of topics: all KEYS tokens and the unique id, the unique id only, or
    nothing. `auto_create_topics` makes a missing topic at a put, with `default_queues` queues.

    Retention of raw segments: `retention`, at hour `delete_when` (0-23; None: any hour), checked
    every `retention_interval`, `delete_interval` between two deletions, `secure_erase` overwrites
    first. Without `hot_for` or `max_bytes` nothing is deleted. `watermarks` are shares of the disk
    in use at which expired segments are deleted regardless of the hour, the oldest are deleted
    though not expired (where a retention allows to delete at all), and puts are refused.

    `archives`: how archives are read, and the memory for that; see `ArchiveAccess`.

    Offsets: a commit is in RocksDB's log at once, so a crash of the process does not lose it. Every
    `offset_sync_interval` (None: when the system does it) commits are put on the disk, so a power
    cut loses those of one interval. Of a group's earlier offsets the last one of every
    `offset_history_interval` is kept for `offset_history_for` (0: not at all).

    Transactions: a prepared message is asked about for the first time after
    `transaction_immunity`, and then every `transaction_check_interval`. After `transaction_checks`
    checks, or when it is older than `transaction_age`, it is given up.

    `on_corruption`: damage below the durable end is reported and passed over ("report") or fails
    the opening ("fail"). `clock`, `files`: the seams, for tests."""

    segment_size: int = 1 << 30
    flush: Literal["async", "sync"] = "async"
    flush_interval: float = 0.5
    flush_dirty_bytes: int = 16 << 10
    flush_thorough_interval: float = 10.0
    visibility: Literal["written", "flushed"] = "written"
    write_mode: Literal["mapped", "staged"] = "mapped"
    stage_bytes: int = 4 << 20
    stage_count: int = 16384
    stage_interval: float = 0.2
    busy_timeout: float = 0.2
    max_body: int = 4 << 20
    max_properties: int = 32767
    compress_above: int | None = None
    compression: Codec = "zstd"
    check_crc: bool = True
    property_crc: bool = False
    check_property_crc: bool = False
    host: str = "127.0.0.1"
    port: int = 10911
    any_time: bool = False
    checkpoint_bytes: int = 64 << 20
    checkpoint_interval: float = 60.0
    key_index: KeyIndex = "all"
    auto_create_topics: bool = False
    default_queues: int = QUEUES_DEFAULT
    offset_sync_interval: float | None = 1.0
    offset_history_for: float = 7 * 24 * 3600.0
    offset_history_interval: float = 1.0
    retention: Retention = Retention()
    delete_when: int | None = None
    retention_interval: float = 10.0
    delete_interval: float = 0.1
    secure_erase: bool = False
    watermarks: tuple[float, float, float] = (0.75, 0.85, 0.90)
    transaction_immunity: float = 6.0
    transaction_check_interval: float = 30.0
    transaction_checks: int = 15
    transaction_age: float = 72 * 3600.0
    on_corruption: Literal["report", "fail"] = "report"
    archives: ArchiveAccess = ArchiveAccess()
    clock: Clock = msgspec.field(default_factory=SystemClock)
    files: Files = msgspec.field(default_factory=LocalFiles)

    def __post_init__(self) -> None:
        _check(self)

    def check_puts_are_readable(self) -> None:
        """Raises `ConfigError` if a store with these settings would refuse to read its own puts."""
        if self.check_property_crc and not self.property_crc:
            raise ConfigError(
                "check_property_crc demands a CRC that property_crc=False leaves out of each "
                "record, so that nothing put here could be read; set property_crc=True as well, "
                "or open the store with read_only=True"
            )

    @classmethod
    def from_toml(cls, text: str) -> StoreConfig:
        """Reads settings from TOML, the names being this class's.

        Raises `ConfigError` for a value that is not text, or not TOML, and for an unknown name or
        an illegal value of a setting.
        """
        if not isinstance(text, str):
            raise ConfigError(f"the settings are {shown(text)}; they must be a text in TOML")
        try:
            found: Mapping[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise ConfigError(f"the settings are not TOML: {e}") from e
        seams = {"clock", "files"} & found.keys()
        if seams:
            raise ConfigError(f"{sorted(seams)} can't be set in a file, only by a program")
        try:
            return msgspec.convert(found, cls)
        except msgspec.ValidationError as e:
            raise ConfigError(f"the settings are not a StoreConfig: {e}") from e


_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "flush": ("async", "sync"),
    "visibility": ("written", "flushed"),
    "write_mode": ("mapped", "staged"),
    "compression": ("zlib", "lz4", "zstd"),
    "key_index": ("all", "unique", "off"),
    "on_corruption": ("report", "fail"),
}
_FLAGS: Final = (
    "check_crc",
    "property_crc",
    "check_property_crc",
    "any_time",
    "auto_create_topics",
    "secure_erase",
)
_DURATION_MAX: Final = 1e9
"""More than 30 years; longer waits than threading allows would raise an error there."""
_STRETCH_MAX: Final = 86400.0
"""Seconds: in a row of history an interval's milliseconds take 4 bytes."""
_DURATIONS: Final = (
    "flush_interval",
    "flush_thorough_interval",
    "stage_interval",
    "busy_timeout",
    "checkpoint_interval",
    "retention_interval",
    "transaction_check_interval",
    "transaction_age",
)
_COUNTS: Final = (
    "stage_bytes",
    "stage_count",
    "max_body",
    "checkpoint_bytes",
    "transaction_checks",
)
_SEAMS: Final[dict[str, type]] = {"clock": Clock, "files": Files}


def _check(c: StoreConfig) -> None:
    for name, choices in _CHOICES.items():
        _choice(name, getattr(c, name), choices)
    for name in _FLAGS:
        _number(name, getattr(c, name), (bool,), "True or False", lambda v: True)
    _check_durations(c)
    _check_sizes(c)
    _check_segment_size(c.segment_size)
    _check_watermarks(c.watermarks)
    _check_host(c.host, c.port)
    check_retention(c.retention)
    if type(c.archives) is not ArchiveAccess:
        raise ConfigError(f"archives is {shown(c.archives)}; it must be a kvstore.ArchiveAccess")
    for name, protocol in _SEAMS.items():
        _check_seam(name, getattr(c, name), protocol)


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {shown(value)}; it must be one of {', '.join(choices)}")


def _check_durations(c: StoreConfig) -> None:
    wanted = f"more than 0 seconds, {_DURATION_MAX:g} at most"
    for name in _DURATIONS:
        _number(name, getattr(c, name), (int, float), wanted, lambda v: 0 < v <= _DURATION_MAX)
    _number(
        "delete_interval",
        c.delete_interval,
        (int, float),
        f"0 to {_DURATION_MAX:g} seconds",
        lambda v: 0 <= v <= _DURATION_MAX,
    )
    _number(
        "offset_history_for",
        c.offset_history_for,
        (int, float),
        f"0 to {_DURATION_MAX:g} seconds",
        lambda v: 0 <= v <= _DURATION_MAX,
    )
    _number(
        "transaction_immunity",
        c.transaction_immunity,
        (int, float),
        f"0 to {_DURATION_MAX:g} seconds",
        lambda v: 0 <= v <= _DURATION_MAX,
    )
    wanted = f"0 to {_STRETCH_MAX:g} seconds (a day)"
    _number(
        "offset_history_interval",
        c.offset_history_interval,
        (int, float),
        wanted,
        lambda v: 0 <= v <= _STRETCH_MAX,
    )
    if c.offset_sync_interval is not None:
        wanted = f"None, or more than 0 seconds, {_DURATION_MAX:g} at most"
        _number(
            "offset_sync_interval",
            c.offset_sync_interval,
            (int, float),
            wanted,
            lambda v: 0 < v <= _DURATION_MAX,
        )
    if c.delete_when is not None:
        wanted = "None, or an hour, 0 to 23"
        _number("delete_when", c.delete_when, (int,), wanted, lambda v: 0 <= v <= 23)


def _check_sizes(c: StoreConfig) -> None:
    for name in _COUNTS:
        _number(name, getattr(c, name), (int,), "a whole number, at least 1", lambda v: v >= 1)
    _number("flush_dirty_bytes", c.flush_dirty_bytes, (int,), "0 bytes or more", lambda v: v >= 0)
    _number(
        "max_properties", c.max_properties, (int,), "0 to 32767 bytes", lambda v: 0 <= v <= 32767
    )
    _number(
        "default_queues",
        c.default_queues,
        (int,),
        f"1 to {QUEUES_MAX} queues",
        lambda v: 1 <= v <= QUEUES_MAX,
    )
    if c.compress_above is not None:
        wanted = "None, or 0 bytes and more"
        _number("compress_above", c.compress_above, (int,), wanted, lambda v: v >= 0)


def _check_host(host: object, port: object) -> None:
    _number("port", port, (int,), "0 to 65535", lambda v: 0 <= v <= 65535)
    try:
        if not isinstance(host, str):
            raise TypeError
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except (OSError, ValueError, TypeError):
        raise ConfigError(
            f"host is {shown(host)}; it must be an IPv4 or IPv6 address in digits, without a zone"
        ) from None


def check_retention(retention: object) -> None:
    """Raises `ConfigError` for a value that is no `Retention`, or for illegal values in it."""
    # Retentions are not checked when they are made: one from a row of any version has to be shown.
    if type(retention) is not Retention:
        raise ConfigError(f"retention is {shown(retention)}; it must be a kvstore.Retention")
    for name in ("hot_for", "warm_for", "cold_for"):
        value = getattr(retention, name)
        if value is not None:
            wanted = "None, or a finite number of seconds, 0 or more"
            _number(f"retention.{name}", value, (int, float), wanted, _is_finite)
    if retention.max_bytes is not None:
        wanted = "None, or 0 bytes and more"
        _number(
            "retention.max_bytes",
            retention.max_bytes,
            (int,),
            wanted,
            lambda v: 0 <= v < 1 << 63,
        )


def _is_finite(value: float) -> bool:
    return 0 <= value < 1 << 63 and math.isfinite(value)


def _check_seam(name: str, value: object, protocol: type) -> None:
    wanted = [n for n in vars(protocol) if not n.startswith("_")]
    missing = [n for n in wanted if not callable(getattr(value, n, None))]
    if missing:
        raise ConfigError(
            f"{name} is {shown(value)}, which has no {', '.join(missing)}; it must be a "
            f"{protocol.__module__}.{protocol.__name__}"
        )


def _number(
    name: str, value: object, kinds: tuple[type, ...], wanted: str, is_right: Callable[[Any], bool]
) -> None:
    if type(value) not in kinds or not is_right(value):
        raise ConfigError(f"{name} is {shown(value)}; it must be {wanted}")


def _check_segment_size(size: object) -> None:
    if type(size) is not int or not SEGMENT_SIZE_MIN <= size <= SEGMENT_SIZE_MAX or size % 4096:
        raise ConfigError(
            f"segment_size is {shown(size)}; it must be a multiple of 4096, {SEGMENT_SIZE_MIN} to "
            f"{SEGMENT_SIZE_MAX} bytes"
        )


def _check_watermarks(watermarks: object) -> None:
    shares = watermarks if isinstance(watermarks, (tuple, list)) else ()
    numbers = [s for s in shares if type(s) in (int, float)]
    if len(numbers) != 3 or not 0 < numbers[0] <= numbers[1] <= numbers[2] <= 1:
        raise ConfigError(
            f"watermarks are {shown(watermarks)}; they must be three shares that "
            "rise, from above 0 to "
            "1 at most"
        )
