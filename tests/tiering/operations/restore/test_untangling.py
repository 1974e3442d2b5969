"""Archives that have a queue's offsets by turns: each offset is found where it is."""

from __future__ import annotations

from pathlib import Path

import kvstore
import tiering
from kvstore import Message, Retention
from tests.support.clock import VirtualClock
from tests.tiering.stores import config
from tiering import Policy, Worker

DAY = 86_400.0
POLICY = Policy(hot_for=600.0, warm_for=30 * DAY, warm="archive", clock_doubt=0.0)


def test_a_restored_store_and_a_rebuilt_one_find_what_two_archives_have_by_turns(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "store"
    with kvstore.open(path, config(clock)) as store:
        store.create_topic("a", queues=1)
        with Worker(store, POLICY) as worker:
            for n in range(6):
                # Of two classes by turns; each merges over what the other has.
                store.alter_topic("a", retention=Retention(warm_for=(20 + n % 2) * DAY))
                store.put_batch([Message("a", b"%d" % m, queue=0) for m in range(n, n + 3)])
                store.seal()
                clock.advance(1000.0)
                assert worker.run_once().failed == {}
            assert worker.merge().failed == {}
            assert len(worker.archives()) == 2
        before = store.pull("a", 0, 0, limit=100).messages
        assert [m.offset for m in before] == list(range(18))
        assert store.verify(archives=True).problems == []
    report = tiering.restore(path / "archive", tmp_path / "restored")
    assert report.problems == []
    kvstore.rebuild(path, config(clock))
    for folder in (tmp_path / "restored", path):
        with kvstore.open(folder, config(clock)) as store:
            assert store.pull("a", 0, 0, limit=100).messages == before
            assert store.verify(archives=True).problems == []
