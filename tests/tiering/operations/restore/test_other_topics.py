"""A caller that is given one topic of an archive is given nothing of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
import tiering
from kvstore import Message, StoreConfig
from kvstore.files import LocalFiles
from tests.support.clock import VirtualClock
from tiering import Policy, Worker
from tiering.archive.archive_reader import Archive
from tiering.archive.layout import CHUNKED
from tiering.archive.tail import PLAIN, FileSource, read_tail
from tiering.executor.pool import Inline

CLOCK = VirtualClock()
CONFIG = StoreConfig(segment_size=4 << 20, clock=CLOCK)
POLICY = Policy(hot_for=0, warm="archive", watermarks=None, clock_doubt=0.0)
SECRET = b"the other topic's text"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One archive of two topics, of which small queues share groups."""
    folder = tmp_path_factory.mktemp("source")
    with kvstore.open(folder, CONFIG) as store:
        for topic in ("wanted", "other"):
            store.create_topic(topic, queues=2)
            text = SECRET if topic == "other" else b"what is asked for"
            for n in range(40):
                body = b"%d: " % n + text * 60
                tag = f"{topic}-tag"
                messages = [
                    Message(topic, body, tag=tag, keys=(f"{topic}{n}-{m}",)) for m in range(20)
                ]
                store.put_batch(messages)
        store.seal()
        CLOCK.advance(60)
        with Worker(store, POLICY, executor=Inline()) as worker:
            assert worker.run_once().failed == {}
    return folder / "archive"


def decoded(path: Path) -> Iterator[bytes]:
    """All that an archive has: its bytes, its sections, the parts of its groups."""
    yield path.read_bytes()
    found = FileSource(path, LocalFiles())
    for kind, place in read_tail(found).sections.items():
        if kind not in CHUNKED:
            yield PLAIN.decode(found.read(place.at, place.size))
    for group in Archive.open(found).groups():
        yield from group.records().values()


def held(folder: Path) -> list[bytes]:
    """Of all files of a store."""
    out: list[bytes] = []
    for path in folder.rglob("*"):
        if path.suffix == ".kvarc":
            out += decoded(path)
        elif path.is_file():
            out.append(path.read_bytes())
    return out


def says_nothing_of_the_other(folder: Path) -> None:
    found = held(folder)
    assert any(b"asked for" in data for data in found)
    for secret in (SECRET, SECRET[:9], b"other"):
        assert not any(secret in data for data in found), secret


def test_a_restored_topic_brings_no_text_of_another(source: Path, tmp_path: Path) -> None:
    assert any(SECRET in data for data in held(source))
    report = tiering.restore(source, tmp_path / "target", topics=["wanted"], config=CONFIG)
    assert report.rewritten == 1
    says_nothing_of_the_other(tmp_path / "target")


def test_an_attached_topic_brings_no_text_of_another(source: Path, tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "target", CONFIG) as store:
        assert tiering.attach(store, source, topics=["wanted"]).messages == 800
    says_nothing_of_the_other(tmp_path / "target")


def test_a_topic_that_is_erased_leaves_no_text(source: Path, tmp_path: Path) -> None:
    tiering.restore(source, tmp_path / "target", copy=True, take_over=True, config=CONFIG)
    with (
        kvstore.open(tmp_path / "target", CONFIG) as store,
        Worker(store, POLICY, executor=Inline()) as worker,
    ):
        assert worker.erase(topic="other").messages == 800
    archives = (tmp_path / "target").rglob("*.kvarc")
    found = [data for path in archives for data in decoded(path)]
    assert found
    assert not any(SECRET[:9] in data for data in found)
