"""With what a store reads its archives: what is taken, what is refused, and that nothing is told of
secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import ArchiveAccess, ConfigError, StoreConfig
from tests.support.naming import named

RIGHT: dict[str, list[Any]] = {
    "keys": [None, "keys.json", Path("keys.json")],
    "options": [{}, {"region": "eu", "timeout": 5, "allow_http": True}],
    "cache_bytes": [0, 1, 1 << 40],
    "open_bytes": [0, 1, 1 << 40],
    "readers": [1, 256],
    "read_ahead": [0, 256],
}
NO_NUMBER: list[Any] = [-1, 1.5, "1", None, True, 1 << 63]
WRONG: dict[str, list[Any]] = {
    "keys": ["", "a\0b", 5, b"keys.json", object(), {"orders": "key"}],
    "options": [None, 5, "region=eu", [("region", "eu")], {5: "eu"}, {"": "eu"}],
    "cache_bytes": NO_NUMBER,
    "open_bytes": NO_NUMBER,
    "readers": [0, 257, *NO_NUMBER],
    "read_ahead": [257, *NO_NUMBER],
}


def test_these_tests_know_every_setting() -> None:
    assert set(RIGHT) == set(WRONG) == set(ArchiveAccess.__struct_fields__)


@pytest.mark.parametrize("name", RIGHT)
def test_everything_within_bounds_is_taken(name: str) -> None:
    for value in RIGHT[name]:
        assert getattr(ArchiveAccess(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in WRONG.items() for v in values], ids=named
)
def test_what_is_beyond_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"archives\.{name}"):
        ArchiveAccess(**{name: value})


def test_it_is_read_from_toml() -> None:
    text = """
    [archives]
    keys = "keys.json"
    readers = 2
    [archives.options]
    endpoint = "http://minio:9000"
    """
    found = StoreConfig.from_toml(text).archives
    assert (found.keys, found.readers, found.cache_bytes) == ("keys.json", 2, 64 << 20)
    assert found.options == {"endpoint": "http://minio:9000"}


def test_no_setting_of_a_place_is_shown() -> None:
    access = ArchiveAccess(options={"secret_access_key": "hush", "region": "eu"})
    assert "hush" not in repr(StoreConfig(archives=access))
    assert "secret_access_key" in repr(access)
    with pytest.raises(ConfigError) as raised:
        ArchiveAccess(options={5: "hush"})  # type: ignore[dict-item]  # what is wrong with it
    assert "hush" not in str(raised.value)


def test_what_is_given_goes_before_what_was_there() -> None:
    first = ArchiveAccess(keys="a", options={"region": "eu", "timeout": 5}, readers=2)
    assert first.with_given() == first
    assert first.with_given("b", {"region": "us"}) == ArchiveAccess(
        keys="b", options={"region": "us", "timeout": 5}, readers=2
    )


def test_a_key_file_that_is_not_there_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    config = StoreConfig(archives=ArchiveAccess(keys=tmp_path / "keys.json"))
    with pytest.raises(ConfigError, match="no file is there"):
        kvstore.open(tmp_path / "store", config)
    assert list(tmp_path.iterdir()) == []
