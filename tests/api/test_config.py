"""Settings: each one's bounds, from Python and from TOML; a wrong one is a `ConfigError`."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import ArchiveAccess, ConfigError, Retention, StoreConfig
from tests.support.naming import named

NAN = float("nan")
CHOICES: dict[str, list[str]] = {
    "flush": ["async", "sync"],
    "visibility": ["written", "flushed"],
    "write_mode": ["mapped", "staged"],
    "compression": ["zlib", "lz4", "zstd"],
    "key_index": ["all", "unique", "off"],
    "on_corruption": ["report", "fail"],
}
RIGHT: dict[str, list[Any]] = {
    **CHOICES,
    "segment_size": [64 << 10, 68 << 10, 1 << 30, 4 << 30],
    "flush_interval": [0.001, 1, 3600.0],
    "flush_dirty_bytes": [0, 1, 1 << 30],
    "flush_thorough_interval": [0.1, 10],
    "stage_bytes": [1, 1 << 30],
    "stage_count": [1, 1 << 20],
    "stage_interval": [0.001, 1],
    "busy_timeout": [0.001, 5],
    "max_body": [1, 4 << 20, 1 << 30],
    "max_properties": [0, 32767],
    "compress_above": [None, 0, 1 << 20],
    "check_crc": [True, False],
    "property_crc": [True, False],
    "check_property_crc": [True, False],
    "any_time": [True, False],
    "host": ["127.0.0.1", "::1", "255.255.255.255", "2001:db8::17"],
    "port": [0, 65535],
    "checkpoint_bytes": [1, 1 << 30],
    "checkpoint_interval": [0.1, 60],
    "auto_create_topics": [True, False],
    "default_queues": [1, 65536],
    "retention": [Retention(), Retention(hot_for=1), Retention(hot_for=0.5, max_bytes=1 << 40)],
    "delete_when": [None, 0, 4, 23],
    "retention_interval": [0.1, 10],
    "transaction_immunity": [0, 6.0],
    "transaction_check_interval": [0.1, 30],
    "transaction_checks": [1, 15],
    "transaction_age": [0.1, 259200],
    "delete_interval": [0, 0.1],
    "offset_sync_interval": [None, 0.001, 60],
    "offset_history_for": [0, 0.5, 7 * 86400, 1e9],
    "offset_history_interval": [0, 0.001, 1, 86400],
    "secure_erase": [True, False],
    "archives": [ArchiveAccess(), ArchiveAccess(options={"region": "eu"}, cache_bytes=0)],
    "watermarks": [(0.75, 0.85, 0.9), (0.1, 0.1, 0.1), (1, 1, 1), (0.0001, 0.5, 1.0)],
}
NO_NUMBER: list[Any] = ["1", None, b"1", [1], True, 1j]
NO_DURATION: list[Any] = [0, 0.0, -1, -0.5, NAN, "1", None, [1], True]
NO_FLAG: list[Any] = [0, 1, "yes", "no", None, "false"]
WRONG: dict[str, list[Any]] = {
    **{
        name: ["banana", "", None, 5, [], *[c.upper() for c in values]]
        for name, values in CHOICES.items()
    },
    "segment_size": [
        0,
        1,
        -1,
        (64 << 10) - 4096,
        (64 << 10) + 1,
        (4 << 30) + 4096,
        65536.0,
        *NO_NUMBER,
    ],
    **dict.fromkeys(
        (
            "flush_interval",
            "flush_thorough_interval",
            "stage_interval",
            "busy_timeout",
            "checkpoint_interval",
            "retention_interval",
            "transaction_check_interval",
            "transaction_age",
        ),
        NO_DURATION,
    ),
    "flush_dirty_bytes": [-1, 1.5, *NO_NUMBER],
    **{
        name: [0, -1, 1.5, *NO_NUMBER]
        for name in (
            "stage_bytes",
            "stage_count",
            "max_body",
            "checkpoint_bytes",
            "transaction_checks",
        )
    },
    "default_queues": [0, -1, 65537, 1.5, *NO_NUMBER],
    "max_properties": [-1, 32768, 1.5, *NO_NUMBER],
    "compress_above": [-1, 1.5, "1", True],
    **dict.fromkeys(
        (
            "check_crc",
            "property_crc",
            "check_property_crc",
            "any_time",
            "auto_create_topics",
            "secure_erase",
        ),
        NO_FLAG,
    ),
    "host": [
        "banana",
        "",
        None,
        5,
        "1.2.3",
        "1.2.3.256",
        "[::1]",
        "localhost",
        "::1%lo",
        b"127.0.0.1",
    ],
    "port": [-1, 65536, 1.5, *NO_NUMBER],
    "retention": [
        None,
        5,
        {"hot_for": 5},
        Retention(hot_for=-1),
        Retention(hot_for="5"),  # type: ignore[arg-type]  # what is wrong with it
        Retention(hot_for=NAN),
        Retention(max_bytes=-1),
        Retention(max_bytes=1.5),  # type: ignore[arg-type]  # likewise
        Retention(hot_for=True),
    ],
    "delete_when": [-1, 24, 4.5, "04", True],
    "delete_interval": [-1, -0.1, NAN, "1", None, True],
    "offset_sync_interval": [0, -1, NAN, "1", True, 2e9],
    "transaction_immunity": [-1, NAN, "1", None, True, 2e9],
    "offset_history_for": [-1, NAN, "1", None, True, 2e9],
    "offset_history_interval": [-1, NAN, "1", None, True, 86401],
    "watermarks": [
        (0.5, 0.6),
        (0.5, 0.6, 0.7, 0.8),
        (0, 0.5, 0.9),
        (0.9, 0.85, 0.95),
        (0.7, 0.9, 0.8),
        (0.5, 0.6, 1.1),
        (NAN, 0.5, 0.6),
        (0.5, NAN, 0.6),
        ("a", "b", "c"),
        None,
        0.5,
        (-1, 0.5, 0.9),
    ],
    "archives": [None, 5, "keys.json", {"cache_bytes": 5}],
    "clock": [None, 5, object()],
    "files": [None, 5, object()],
}


def test_these_tests_know_every_setting() -> None:
    names = set(StoreConfig.__struct_fields__)
    assert set(WRONG) == names
    assert set(RIGHT) == names - {"clock", "files"}


@pytest.mark.parametrize("name", RIGHT)
def test_a_setting_takes_everything_within_its_bounds(name: str) -> None:
    for value in RIGHT[name]:
        assert getattr(StoreConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in WRONG.items() for v in values], ids=named
)
def test_a_setting_beyond_its_bounds_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        StoreConfig(**{name: value})
    assert isinstance(caught.value, ValueError)


def test_settings_are_those_of_the_api_by_themselves() -> None:
    c = StoreConfig()
    assert (c.segment_size, c.flush, c.flush_interval, c.visibility) == (
        1 << 30,
        "async",
        0.5,
        "written",
    )
    assert (c.write_mode, c.checkpoint_bytes, c.key_index) == ("mapped", 64 << 20, "all")
    assert (c.compress_above, c.check_crc, c.auto_create_topics) == (None, True, False)
    assert (c.delete_when, c.watermarks, c.busy_timeout) == (None, (0.75, 0.85, 0.90), 0.2)
    assert c.retention == Retention(hot_for=None, warm_for=None, cold_for=None, max_bytes=None)


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        StoreConfig().flush = "sync"  # type: ignore[misc]  # what must fail


def test_settings_are_read_from_toml() -> None:
    text = """
    segment_size = 1_048_576
    flush = "sync"
    flush_interval = 2
    watermarks = [0.5, 0.6, 0.7]
    compress_above = 0
    secure_erase = true
    [retention]
    hot_for = 3600
    max_bytes = 1_000_000
    """
    found = StoreConfig.from_toml(text)
    assert (found.segment_size, found.flush, found.flush_interval) == (1 << 20, "sync", 2)
    assert (found.watermarks, found.compress_above, found.secure_erase) == (
        (0.5, 0.6, 0.7),
        0,
        True,
    )
    assert found.retention == Retention(hot_for=3600, max_bytes=1_000_000)
    assert StoreConfig.from_toml("").segment_size == 1 << 30


@pytest.mark.parametrize(
    "text",
    [
        "flush = 'banana'",
        "segment_size = 1",
        "segment_size = 'big'",
        "unknown = 5",
        "flush_interval = 0",
        "= 5",
        "[retention]\nhot = 5",
        "[retention]\nhot_for = 'x'",
        "[retention]\nhot_for = -1",
        "[archives]\nkeys = 5",
        "[archives]\nkeys = ''",
        "[archives]\ncache = 5",
        "[archives]\nreaders = 0",
        "[archives]\ncache_bytes = '64 MiB'",
        "[archives]\noptions = 'region=eu'",
        "archives = 5",
        "watermarks = [0.5]",
        "clock = 5",
        "files = 'x'",
        "segment_size = 65536\nsegment_size = 65536",
        "check_crc = 'no'",
        "host = 'banana'",
        "\x00",
        "segment_size = 65536.0",
        "flush_interval = nan",
        None,
        5,
        b"flush = 'sync'",
    ],
)
def test_what_is_no_setting_in_toml_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError):
        StoreConfig.from_toml(text)
