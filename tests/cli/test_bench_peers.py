"""The comparison with other stores: works count what they did, and the page says what was found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers import page, work
from bench.peers.installing import IN_MEMORY
from bench.peers.peer import Item, Peer, items
from bench.peers.peer_kvmq import Kvmq
from bench.peers.peer_sqlite import LeaseTable
from bench.peers.work import WORKS, measured, putting

README_LINES_MAX = 90
ROOT = Path(__file__).resolve().parents[2]
GIVES = {
    "read": {"pull", "get", "query"},
    "topics_5000": {"topics_5000", "topics_5000_single"},
}
"""The rows of works that give others than their own."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARM_S", "SECONDS", "LOAD_S"):
        monkeypatch.setattr(work, name, 0.02)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("make", [Kvmq, LeaseTable])
@pytest.mark.parametrize("name", WORKS)
def test_every_work_is_done_by_kvmq_and_by_the_table(
    name: str, make: type[Kvmq | LeaseTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each waits until its messages are due.
    monkeypatch.setattr(work, "WARM_DELIVERIES", 0)
    monkeypatch.setattr(work, "DELIVERIES", 1)
    opened: list[Peer] = []

    def opens(sync: bool) -> Peer:
        opened.append(make(tmp_path, sync))
        return opened[-1]

    if name in {"put_columns", "deliver", "transaction"} and make is LeaseTable:
        with pytest.raises(NotImplementedError):
            WORKS[name](opens, 500)
        return
    rows = WORKS[name](opens, 500)
    for peer in opened:
        peer.close()
    assert set(rows) == GIVES.get(name, {name})
    for row, figures in rows.items():
        assert all(value > 0 for value in figures.values())
        assert ("disk" in figures) == (row in {"topics_8", "topics_500", "topics_5000"})
        assert ("rate" in figures) == (row in page.ROWS | page.TIME_ROWS)


def test_a_rate_is_of_the_seconds_after_those_that_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "WARM_S", 4.0)
    monkeypatch.setattr(work, "SECONDS", 3.0)
    asked = []

    def turn(seconds: float) -> tuple[int, float]:
        asked.append(seconds)
        return (10, 2.0) if len(asked) <= 2 else (9000, 1.5)

    rate = measured(turn)["rate"]
    assert asked == [4.0, 2.0, 3.0, 1.5]
    assert rate == pytest.approx(6000, rel=0.01)


def test_a_work_that_does_nothing_is_an_error_and_not_a_rate() -> None:
    with pytest.raises(RuntimeError, match="did nothing"):
        measured(lambda _: (0, 0.1))


def test_making_messages_is_not_on_the_clock_of_putting(tmp_path: Path) -> None:
    made: list[int] = []
    seen: list[int] = []

    def coming() -> Iterator[Item]:
        for item in items(64, 128, 1, 1):
            made.append(1)
            yield item

    class Seeing(Peer):
        def put_batch(self, batch: list[Item]) -> list[None]:
            seen.append(len(made))
            return [None] * len(batch)

    assert putting(Seeing(tmp_path, sync=False), coming(), 32)(9.0)[0] == 64
    assert seen == [64, 64]


def test_the_works_in_java_have_the_same_numbers() -> None:
    java = (ROOT / "bench/peers/rocketmq/src/main/java/Peer.java").read_text(encoding="utf-8")
    for name in ("BATCH", "QUEUES", "THREADS", "WARM_S", "SECONDS", "LOAD_S"):
        [value] = re.findall(rf"\b{name} = ([\d.]+)", java)
        assert float(value) == getattr(work, name)
    assert set(WORKS) == set(re.findall(r'case "(\w+)"', java)) | {
        "topics_8",
        "topics_500",
        "topics_5000",
    }


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"))
    return tmp_path


RESULTS: page.Results = {
    "kvmq": {"put_batch": {"rate": 300_000.0}},
    "Redis Streams": {"put_batch": {"rate": 123_456.0}, "pull": {"rate": 20.0}},
}
PEERS: page.Runs = {"kvmq": (("python", "-m", "x"), "1"), "Redis Streams": (("python",), "7")}


def test_the_page_has_rates_with_kvmqs_beside_them_and_versions(written: Path) -> None:
    page.write({"Begun": "today"}, PEERS, RESULTS, full=True)
    text = (written / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert "| put, batches of 32, 128 B | 300,000/s | 123,000/s (2.4 ×) |" in text
    assert "| pull of 32, every field read | – | 20.0/s |" in text
    assert "| Redis Streams | 7 |" in text
    assert "short run" not in text


FULL: page.Results = {
    "kvmq": {
        "put_batch": {"rate": 600.0},
        "put_columns": {"rate": 1300.0},
        "pop_batch": {"rate": 300.0},
        "topics_5000": {"rate": 1.0, "memory": 48.0},
    },
    "RocketMQ, files": {
        "put_batch": {"rate": 500.0},
        "pop_batch": {"rate": 4.0},
        "topics_5000": {"memory": 100.0},
    },
    "RocketMQ, RocksDB": {
        "put_batch": {"rate": 201.0},
        "topics_5000": {"rate": 1.0, "memory": 480.0},
    },
    IN_MEMORY: {"pop_batch": {"rate": 150.0}},
}


def test_targets_say_what_was_measured_and_whether_it_is_met(written: Path) -> None:
    page.write({}, PEERS, FULL, full=True)
    text = (written / "docs/benchmarks.md").read_text(encoding="utf-8")
    batch, both = "put, batches of 32, 128 B", "RocketMQ, files or RocketMQ, RocksDB"
    assert f"| {batch} | RocketMQ, RocksDB | at least 3 × | 2.99 × | no |" in text
    assert f"| {batch} | RocketMQ, files | at least 1.2 × | 1.20 × | yes |" in text
    columns = "put, Arrow columns of 1,024 rows, 128 B"
    assert f"| {columns} | {batch} | at least 2 × | 2.17 × | yes |" in text
    assert f"| pop of 32 and ack | {IN_MEMORY} | at least 2 × | 2.00 × | yes |" in text
    assert f"| pop of 32 and ack | {both} | at least 40 × | 75.00 × | yes |" in text
    assert (
        "| query by key | RocketMQ, files or RocketMQ, RocksDB | at least 0.5 × | – | not" in text
    )
    page.write({}, PEERS, FULL, full=False)
    assert "## Targets" not in (written / "docs/benchmarks.md").read_text(encoding="utf-8")


def test_memory_of_a_store_that_failed_is_told_but_is_no_target(written: Path) -> None:
    page.write({}, PEERS, FULL, full=True)
    text = (written / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert "| memory, 5,000 topics of 8 queues | 48.0 MB | 100 MB | 480 MB | – |" in text
    assert "| at most 0.1 × | 0.10 × | yes |" in text


def test_readmes_rows_are_those_of_a_full_run(written: Path) -> None:
    readme = (written / "README.md").read_text(encoding="utf-8")
    page.write({}, PEERS, RESULTS, full=False)
    assert (written / "README.md").read_text(encoding="utf-8") == readme
    assert "short run" in (written / "docs/benchmarks.md").read_text(encoding="utf-8")
    page.write({}, PEERS, RESULTS, full=True)
    changed = (written / "README.md").read_text(encoding="utf-8")
    put, read, memory = page.README_ROWS
    no, never = "not measured", "not measured | not measured | not measured"
    assert f"| {put} | 300,000/s; {no} | {never} | 123,000/s; {no} | {no} |\n" in changed
    assert f"| {read} | {no} | {never} | 20.0/s; {no} | {no} |\n" in changed
    assert f"| {memory} | {no} | {never} | {no} | {no} |\n" in changed
    rows = tuple(f"| {title} |" for title in page.README_ROWS)
    before, after = (
        [line for line in text.splitlines() if not line.startswith(rows)]
        for text in (readme, changed)
    )
    assert before == after


def test_readmes_rows_are_written_again_in_the_same_place(written: Path) -> None:
    page.write({}, PEERS, FULL, full=True)
    once = (written / "README.md").read_text(encoding="utf-8")
    page.write({}, PEERS, FULL, full=True)
    assert (written / "README.md").read_text(encoding="utf-8") == once
    assert len(once.splitlines()) <= README_LINES_MAX
    put, _, memory = page.README_ROWS
    no = "not measured"
    assert f"| {put} | 600/s; {no} | 500/s; {no} | {no} | {no} | {no} | {no} |\n" in once
    assert f"| {memory} | 48.0 MB | 480 MB | {no} | {no} | {no} | {no} |\n" in once
