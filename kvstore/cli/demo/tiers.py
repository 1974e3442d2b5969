"""Tiers the cold half of a loaded store, and asks the same questions before and after.

The idea: what a reader can ask is asked of a fair sample while all of it is hot, then the older
half of the segments goes into archives, and the same questions must have the same answers. That the
hot answers are right was checked before, against the source.

Invariant: nothing is remembered but the answers; a sample of queues is read from end to end, so
that readers cross from archives into segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from kvstore import Store
from kvstore.cli.demo.load import Loaded
from kvstore.cli.demo.space import TierSpace
from kvstore.cli.demo.steps import Step
from kvstore.cli.output import Report
from kvstore.clock import SystemClock
from kvstore.errors import StoreError

FOLDER: Final = "archive"
_PULL: Final = 32
_QUEUES: Final = 24
_QUEUE_MAX: Final = 4_000
"""Messages of a queue at most, so that one that is very long is not most of the demo."""
_MESSAGES: Final = 600
_KEYS: Final = 12
_KEY_LIMIT: Final = 200

Question = tuple[str, Callable[[], object]]


def tier_cold_half(store: Store, loaded: Loaded, report: Report) -> tuple[list[Step], TierSpace]:
    """Tier the older half of a store; returns what that took, and how reading across tiers went."""
    before = [_answer(ask) for _, ask in _questions(store, loaded)]
    moved, space = _move(store, report)
    across = Step("across tiers", "pull, get, read_at, find, query, offset_at: as before", unit="")
    clock = SystemClock()
    for number, ((what, ask), expected) in enumerate(
        zip(_questions(store, loaded), before, strict=True)
    ):
        begin = clock.monotonic()
        found = _answer(ask)
        across.seconds += clock.monotonic() - begin
        across.count += 1
        across.expect(found == expected, f"{what} has another answer: {found} is not {expected}")
        report("asking again, across tiers", number, len(before))
    return [moved, across], space


def _answer(ask: Callable[[], object]) -> object:
    """What the store says, if need be by an error."""
    try:
        return ask()
    except StoreError as e:
        return f"{type(e).__name__}: {e}"


def _questions(store: Store, loaded: Loaded) -> Iterator[Question]:
    """What is asked, always in one order; each message and queue is drawn from the sample."""
    sample = loaded.sample[:_MESSAGES]
    queues = dict.fromkeys((result.topic, result.queue) for _, result in sample)
    for topic, queue in list(queues)[:_QUEUES]:
        for offset in range(0, min(loaded.queues[topic, queue], _QUEUE_MAX), _PULL):
            yield (
                f"pull {topic} queue {queue} from {offset}",
                partial(store.pull, topic, queue, offset, limit=_PULL),
            )
    for number, (message, result) in enumerate(sample):
        topic, queue, offset = result.topic, result.queue, result.offset
        where = f"{topic} queue {queue} offset {offset}"
        ask = number % 4
        if ask == 0:
            yield f"get {where}", partial(store.get, topic, queue=queue, offset=offset)
        elif ask == 1:
            yield f"read_at of {where}", partial(store.read_at, result.position)
        elif ask == 2:
            yield f"find {where}", partial(store.find, result.message_id)
        else:
            time = store.get(topic, queue=queue, offset=offset).stored_at
            yield (
                f"offset_at {where}",
                partial(store.offset_at, topic, queue, time=time),
            )
        if number < _KEYS:
            key = message.keys[0]
            yield (
                f"query {topic} {key}",
                partial(store.query, topic, key, limit=_KEY_LIMIT),
            )


def _move(store: Store, report: Report) -> tuple[Step, TierSpace]:
    from tiering import Policy, Worker
    from tiering.worker import MOVING

    if not store.segments():
        store.seal()
    sealed = len(store.segments())
    cold = sealed // 2 + 1
    # By size: what was put a moment ago is too young for any age.
    most = max(sealed + 1 - cold, 1) * store.stats().segment_size
    policy = Policy(warm=FOLDER, max_bytes=most, watermarks=None)

    def tell(what: str, done: int, total: int) -> None:
        if what == MOVING:
            report("tiering the cold half", done, total)

    step = Step("tier")
    with Worker(store, policy, progress=tell) as worker, step.timed():
        done = worker.run_once()
    step.count = done.messages
    for what, why in done.failed.items():
        step.fault(f"{what}: {why}")
    step.expect(bool(done.segments), "nothing was tiered")
    step.shown = f"the cold half: {len(done.segments)} segments, in archives that were read back"
    # Of what the folder has, not of what the worker says.
    files = sum(path.stat().st_size for path in (store.path / FOLDER).rglob("*.kvarc"))
    step.expect(files == done.bytes, f"the archives have {files:,} bytes, not {done.bytes:,}")
    space = TierSpace(
        warm_messages=done.messages, warm_records=done.raw_bytes, warm=done.bytes,
        hot=store.stats().log_bytes,
    )  # fmt: skip
    return step, space
