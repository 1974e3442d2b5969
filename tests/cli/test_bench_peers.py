"""The comparison with other stores: works count what they did, and the page says what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import page
from bench.peers.peer import Peer
from bench.peers.peer_kvmq import Kvmq
from bench.peers.peer_sqlite import LeaseTable
from bench.peers.work import WORKS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("make", [Kvmq, LeaseTable])
@pytest.mark.parametrize("work", WORKS)
def test_every_work_is_done_by_kvmq_and_by_the_table(
    work: str, make: type[Kvmq | LeaseTable], tmp_path: Path
) -> None:
    opened: list[Peer] = []

    def opens(sync: bool) -> Peer:
        opened.append(make(tmp_path, sync))
        return opened[-1]

    figures = WORKS[work](opens, 500)
    for peer in opened:
        peer.close()
    assert figures["rate"] > 0
    assert ("disk" in figures) == work.startswith("topics")


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


def test_readmes_row_is_that_of_a_full_run(written: Path) -> None:
    readme = (written / "README.md").read_text(encoding="utf-8")
    page.write({}, PEERS, RESULTS, full=False)
    assert (written / "README.md").read_text(encoding="utf-8") == readme
    assert "short run" in (written / "docs/benchmarks.md").read_text(encoding="utf-8")
    page.write({}, PEERS, RESULTS, full=True)
    changed = (written / "README.md").read_text(encoding="utf-8")
    row = f"{page.README_ROW} 300,000/s | not measured | not measured | not measured | 123,000/s |"
    assert f"{row} not measured |\n" in changed
    assert len(changed.splitlines()) == len(readme.splitlines())
