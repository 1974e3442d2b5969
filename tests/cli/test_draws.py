"""Fair draws, and the sizes of RocketMQ's queue files."""

from __future__ import annotations

from collections import Counter

from kvstore.cli.trial.demo import Draws, Sample
from kvstore.cli.trial.measure import rocketmq_queue_files


def test_a_sample_is_fair_and_the_same_every_time() -> None:
    counts: Counter[int] = Counter()
    for seed in range(300):
        sample: Sample[int] = Sample(10, seed)
        for item in range(100):
            slot = sample.slot()
            if slot is not None:
                sample.put(slot, item)
        assert len(set(sample.items)) == 10
        counts.update(sample.items)
    assert len(counts) == 100
    assert max(counts.values()) < 70, "30 are expected of each; 70 would be seven sigma"
    assert [Draws(7).below(100) for _ in range(3)] == [Draws(7).below(100)] * 3


def test_queue_files_take_whole_pages_and_whole_files() -> None:
    assert rocketmq_queue_files([1, 204, 205]) == (4096 * 4, 3 * 6_000_000)
    assert rocketmq_queue_files([300_001]) == (1465 * 4096, 12_000_000)
