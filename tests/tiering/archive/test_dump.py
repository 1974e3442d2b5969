"""`kvmq dump ARCHIVE`: manifest, blocks and messages, from the file alone, damage passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvstore.cli import kvmq
from tests.tiering.archive.making import Made, make, plain_queues
from tiering.archive.writer import ArchiveSettings

GOOD, DAMAGED, USAGE = 0, 1, 2


@pytest.fixture(scope="module")
def made() -> Made:
    return make(plain_queues(2, 2, 12), ArchiveSettings(block_bytes=700))


@pytest.fixture
def archive(made: Made, tmp_path: Path) -> Path:
    path = tmp_path / "an.archive"
    path.write_bytes(made.data)
    return path


def run(*words: object) -> Result:
    result = CliRunner().invoke(kvmq, ["dump", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines(*words: object, code: int = GOOD) -> list[dict[str, Any]]:
    result = run(*words, "--json")
    assert result.exit_code == code
    return [json.loads(line) for line in result.stdout.splitlines()]


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in found if line["kind"] == kind]


def test_everything_in_an_archive_is_shown(made: Made, archive: Path) -> None:
    found = lines(archive)
    (manifest,) = of_kind(found, "archive")
    assert manifest["messages"] == 48
    assert manifest["store_id"] == made.manifest.store_id
    assert sum(manifest["sections"].values()) < manifest["size"] == len(made.data)
    assert [topic["name"] for topic in of_kind(found, "topic")] == ["topic0", "topic1"]
    blocks = of_kind(found, "block")
    assert len(blocks) == manifest["blocks"]
    assert sum(block["messages"] for block in blocks) == 48
    shown = {(r["topic"], r["queue"], r["offset"]): r for r in of_kind(found, "record")}
    assert len(shown) == 48
    for queue in made.queues:
        for offset, raw in queue.records.items():
            record = shown[queue.topic.name, queue.queue, offset]
            assert record["body"].encode() in raw
            assert record["size"] == len(raw)


def test_people_see_the_same_as_text(archive: Path) -> None:
    text = run(archive).stdout
    for wanted in ("archive: ", "topic: ", "block: ", "record at 1000", "topic1", "paid"):
        assert wanted in text


@pytest.mark.parametrize(
    ("options", "count"),
    [(("--topic", "topic0"), 24), (("--topic", "topic0", "--queue", 1), 12),
     (("--topic", "topic0", "--queue", 1, "--offset", 7), 1), (("--limit", 5), 5),
     (("--topic", "topic1", "--from", 10), 4), (("--position", 1000), 1)],
)  # fmt: skip
def test_messages_are_chosen_as_in_a_log(
    archive: Path, options: tuple[object, ...], count: int
) -> None:
    assert len(of_kind(lines(archive, *options), "record")) == count


@pytest.mark.parametrize("options", [("--position", 77), ("--topic", "nowhere")])
def test_a_message_that_is_not_there_is_said_to_be_missing(
    archive: Path, options: tuple[object, ...]
) -> None:
    result = run(archive, *options)
    assert result.exit_code == DAMAGED
    assert "no archive" in result.output


def test_a_damaged_block_is_shown_and_passed_over(made: Made, archive: Path) -> None:
    opened, _ = made.open()
    at, sizes = opened.directory.extent(2)
    data = bytearray(made.data)
    data[at + sum(sizes) - 10] ^= 1
    archive.write_bytes(data)
    found = lines(archive, code=DAMAGED)
    shared = opened.directory.within(2) or range(2, 3)
    damage = of_kind(found, "damage")
    assert len(shared) > 1
    assert len(damage) == len(shared)
    what = f"blocks {shared.start} to {shared.stop - 1} of archive"
    assert all(what in one["reason"] for one in damage)
    lost = sum(map(opened.directory.count, shared))
    assert 0 < lost < 48
    assert len(of_kind(found, "record")) == 48 - lost


def test_an_archive_whose_end_is_missing_is_damage(made: Made, archive: Path) -> None:
    archive.write_bytes(made.data[:-5])
    (damage,) = lines(archive, code=DAMAGED)
    assert "an.archive" in damage["reason"]


def test_what_is_said_to_be_an_archive_is_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"something else")
    assert lines(tmp_path / "other", "--kind", "archive", code=DAMAGED)[0]["kind"] == "damage"
    assert run(tmp_path / "other").exit_code == USAGE
