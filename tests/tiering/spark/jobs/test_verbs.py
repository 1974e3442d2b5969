"""The verbs `kvmq spark ...`: what the embedded ones do, with the same options and answers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import kvstore
from tests.cli.conftest import Kvmq, kvmq
from tests.support.clock import VirtualClock
from tests.tiering.spark.jobs.twins import Side, config, plain

__all__ = ["kvmq"]
"""A fixture, here too."""
POLICY = 'hot_for = "1d"\nwarm = "archive"\nclock_doubt = 0\nblock_bytes = 8192\ngrace = 0\n'


def test_each_verb_answers_as_the_embedded_one(
    kvmq: Kvmq, spark: SparkSession, made: tuple[Path, int], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    kvmq("tier", "key", "make", keys, "orders")

    def done(folder: Path, *, spark: bool) -> list[Any]:
        shutil.copytree(made[0], folder)
        policy = folder / "policy.toml"
        policy.write_text(POLICY)
        given = ("--policy", policy, "--json")
        first, rest = (("spark",), ("spark",)) if spark else (("tier",), ())
        moved = kvmq(*first, "tier" if spark else "run", folder, *given)
        compacted = kvmq(*first, "compact", folder, *given)
        merged = kvmq(*first, "merge", folder, *given)
        encrypted = kvmq(*first, "reencrypt", folder, *given, "--keys", keys)
        erased = kvmq(*rest, "erase", "key", folder, "k3", *given, "--keys", keys)
        verified = kvmq(*first, "verify", folder, "--json", "--keys", keys)
        ran = [moved, compacted, merged, encrypted, erased, verified]
        assert [one.code for one in ran] == [0] * 6, [one.err for one in ran]
        return [one.json for one in ran]

    one = done(tmp_path / "embedded", spark=False)
    other = done(tmp_path / "spark", spark=True)
    assert plain(one) == plain(other)
    assert [len(found.get("archives") or []) > 0 for found in one[:4]] == [True] * 4
    sides = [Side(tmp_path / name) for name in ("embedded", "spark")]
    for side in sides:
        with kvstore.open(side.path, config(VirtualClock(made[1])), read_only=True) as store:
            side.note(store, None)
    assert sides[0].objects == sides[1].objects
