"""The settings of a store, each with its unit and default; nothing else reads settings.

The idea: one frozen Struct, checked once when it is made, loadable from TOML. What is fixed when a
store is created (`segment_size`) is taken from the store when it exists."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from kvstore.clock import Clock, SystemClock
from kvstore.errors import ConfigError
from kvstore.files import Files, LocalFiles

KeyIndex = Literal["all", "unique", "off"]
Codec = Literal["zlib", "lz4", "zstd"]

SEGMENT_SIZE_MIN = 64 << 10
SEGMENT_SIZE_MAX = 4 << 30
"""Positions inside a segment are stored in 4 bytes."""


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
    "written" shows a message as soon as it is written, "flushed" only when it is on disk.
    `write_mode` "mapped" writes into the mapped file; "staged" collects in one of two memory
    buffers that are swapped at `stage_bytes`, `stage_count` messages or `stage_interval`.
    `busy_timeout`: how long a put waits for the write lock before `StoreBusy`.

    Messages: `max_body` and `max_properties` limit a message (RocketMQ's 4 MiB and 32,767). Bodies
    above `compress_above` bytes (None: never) are compressed with `compression`. `check_crc` checks
    bodies when read; `property_crc` writes a CRC over the whole record into it,
    `check_property_crc` has recovery demand it. `host`, `port` are what records carry as store and
    born host.

    Index: `checkpoint_bytes` of log, or `checkpoint_interval`, are between two checkpoints.
    `key_index` is the default of topics: all KEYS tokens and the unique id, the unique id only, or
    nothing. `auto_create_topics` makes a missing topic at a put, with `default_queues` queues.

    Retention of raw segments: `retention`, at hour `delete_when` (0-23; None: any hour), checked
    every `retention_interval`, `delete_interval` between two deletions, `secure_erase` overwrites
    first. `watermarks` are shares of the disk in use at which expired segments are deleted
    regardless of the hour, the oldest are deleted though not expired, and puts are refused.

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
    checkpoint_bytes: int = 64 << 20
    checkpoint_interval: float = 60.0
    key_index: KeyIndex = "all"
    auto_create_topics: bool = False
    default_queues: int = 4
    retention: Retention = Retention()
    delete_when: int | None = None
    retention_interval: float = 10.0
    delete_interval: float = 0.1
    secure_erase: bool = False
    watermarks: tuple[float, float, float] = (0.75, 0.85, 0.90)
    on_corruption: Literal["report", "fail"] = "report"
    clock: Clock = msgspec.field(default_factory=SystemClock)
    files: Files = msgspec.field(default_factory=LocalFiles)

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def from_toml(cls, text: str) -> StoreConfig:
        """Read settings from TOML, the names being this class's.

        Raises `ConfigError` for text that is not TOML, and for a name or a value that is not a
        setting's."""
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
_DURATIONS: Final = (
    "flush_interval",
    "flush_thorough_interval",
    "stage_interval",
    "busy_timeout",
    "checkpoint_interval",
    "retention_interval",
)
_COUNTS: Final = ("stage_bytes", "stage_count", "max_body", "checkpoint_bytes", "default_queues")


def _check(c: StoreConfig) -> None:
    for name, choices in _CHOICES.items():
        if getattr(c, name) not in choices:
            raise ConfigError(
                f"{name} is {getattr(c, name)!r}; it must be one of {', '.join(choices)}"
            )
    for name in _DURATIONS:
        _number(name, getattr(c, name), (int, float), "more than 0 seconds", lambda v: v > 0)
    for name in _COUNTS:
        _number(name, getattr(c, name), (int,), "a whole number, at least 1", lambda v: v >= 1)
    _number("flush_dirty_bytes", c.flush_dirty_bytes, (int,), "0 bytes or more", lambda v: v >= 0)
    _number(
        "delete_interval", c.delete_interval, (int, float), "0 seconds or more", lambda v: v >= 0
    )
    _number(
        "max_properties", c.max_properties, (int,), "0 to 32767 bytes", lambda v: 0 <= v <= 32767
    )
    _number("port", c.port, (int,), "0 to 65535", lambda v: 0 <= v <= 65535)
    if c.compress_above is not None:
        _number(
            "compress_above",
            c.compress_above,
            (int,),
            "None, or 0 bytes and more",
            lambda v: v >= 0,
        )
    if c.delete_when is not None:
        _number(
            "delete_when",
            c.delete_when,
            (int,),
            "None, or an hour, 0 to 23",
            lambda v: 0 <= v <= 23,
        )
    _check_segment_size(c.segment_size)
    _check_watermarks(c.watermarks)


def _number(
    name: str, value: object, kinds: tuple[type, ...], wanted: str, is_right: Callable[[Any], bool]
) -> None:
    if type(value) not in kinds or not is_right(value):
        raise ConfigError(f"{name} is {value!r}; it must be {wanted}")


def _check_segment_size(size: object) -> None:
    if type(size) is not int or not SEGMENT_SIZE_MIN <= size <= SEGMENT_SIZE_MAX or size % 4096:
        raise ConfigError(
            f"segment_size is {size!r}; it must be a multiple of 4096, {SEGMENT_SIZE_MIN} to "
            f"{SEGMENT_SIZE_MAX} bytes"
        )


def _check_watermarks(watermarks: object) -> None:
    shares = watermarks if isinstance(watermarks, (tuple, list)) else ()
    numbers = [s for s in shares if type(s) in (int, float)]
    if len(numbers) != 3 or not 0 < numbers[0] <= numbers[1] <= numbers[2] <= 1:
        raise ConfigError(
            f"watermarks are {watermarks!r}; they must be three shares that rise, from above 0 to "
            "1 at most"
        )
