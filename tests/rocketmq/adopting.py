"""Ways to adopt a RocketMQ store, and to bring an adopted one up again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import kvstore
from kvstore import Store, StoreConfig


def adopted(source: Path, path: Path, config: StoreConfig) -> Store:
    """An opened store that was imported."""
    kvstore.import_rocketmq(source, path, config)
    return kvstore.open(path, config)


def opened_again(path: Path, config: StoreConfig) -> None:
    with kvstore.open(path, config):
        pass


def rebuilt(path: Path, config: StoreConfig) -> None:
    kvstore.rebuild(path, config)


def without_index(path: Path, config: StoreConfig) -> None:
    shutil.rmtree(path / "index")
    kvstore.rebuild(path, config)


WAYS_AGAIN: Final = (opened_again, rebuilt, without_index)
