"""The verb `demo`: the store's main jobs on real input, with every answer checked.

The input is read twice. The first reading is put, the second is compared with the store's answers.
Begin at `_run`: it is the list of steps.

Invariants: a check that finds a fault notes it and goes on. The sample of messages is the same each
time, so a check that failed can be run again as it was.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final

import click
import msgspec
import numpy as np

import kvstore
from kvstore import Message, PutResult, Store, StoreConfig, StoredMessage, StoreError, TopicConfig
from kvstore.cli.terminal.options import LocalPath
from kvstore.cli.terminal.output import Output, Report, exit_if, output_option, size_text
from kvstore.cli.trial.demo_source import QUEUES, Source, at_hand
from kvstore.cli.trial.killed_writer import write_and_kill
from kvstore.cli.trial.measure import index_sizes, rocketmq_queue_files
from kvstore.clock import SystemClock

_CONFIG: Final = StoreConfig(segment_size=64 << 20)
"""Small segments, so that the demo seals some; a segment of 1 GiB would take all of its input."""
_BATCH: Final = 64
_PULL: Final = 32
_SAMPLE: Final = 1_000
_ARCHIVED_SAMPLE: Final = 200
_POPPED_MAX: Final = 20_000
_GROUP: Final = "demo-workers"
_KILLED: Final = "kvmq_demo_killed"
_PROBLEMS_KEPT, _PROBLEM_LENGTH = 5, 300
"""Of one step, and characters of each."""

Queue = tuple[str, int]
Sampled = list[tuple[Message, PutResult]]


class Step(msgspec.Struct):
    """One row of the demo's table; `seconds` are those of the calls and of the checks."""

    name: str
    shown: str
    count: int = 0
    seconds: float = 0.0
    problems: list[str] = []

    def fault(self, problem: str) -> None:
        """Notes a fault, if it is among the first ones."""
        if len(self.problems) < _PROBLEMS_KEPT:
            self.problems.append(problem[:_PROBLEM_LENGTH])


@click.command()
@click.argument("files", nargs=-1, type=LocalPath(exists=True, dir_okay=False, allow_dash=True))
@click.option("--dir", "folder", type=LocalPath(file_okay=False),
              help="Where to make the store; default kvmq-demo/<time>.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="Only so many messages.")
@click.option(
    "--keep/--no-keep", default=True, show_default=True, help="Leave the store to look at."
)
@output_option
def demo(
    out: Output, files: tuple[Path, ...], folder: Path | None, limit: int | None, keep: bool
) -> None:
    """Put real input, read and pop it, archive half the log, kill a writer, and check every answer.

    Without FILES the input is this Python's own standard library, else the lines of FILES (- is
    standard input). Exit code 1 if any check fails.
    """
    folder = _new_folder(folder)
    source = Source([at_hand(path, folder) for path in files], limit)
    if next(source.messages(), None) is None:
        raise click.UsageError(f"{source.title} has no line; give a file that has some")
    begin = SystemClock().monotonic()
    with out.progress() as progress:
        steps, sizes = _run(folder, source, progress)
    seconds = SystemClock().monotonic() - begin
    problems = [f"{step.name}: {problem}" for step in steps for problem in step.problems]
    if out.json:
        found = {"ok": not problems, "problems": problems, "steps": steps, "sizes": sizes}
        out.document(found | {"source": source.title, "folder": str(folder), "seconds": seconds})
    else:
        _show(out, source, folder, steps, sizes)
        for problem in problems:
            out.text(problem, fg="red")
        verdict = "Some checks failed." if problems else f"Every check passed, in {seconds:.0f} s."
        out.text(verdict, fg="red" if problems else "green", bold=True)
    exit_if(problems)
    if not keep:
        shutil.rmtree(folder)


def _new_folder(folder: Path | None) -> Path:
    if folder is None:
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000)
        folder = Path("kvmq-demo") / now.strftime("%Y%m%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty; the demo makes a new store")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(folder: Path, source: Source, progress: Report) -> tuple[list[Step], dict[str, int]]:
    """Each step in its order. An error of the store is a fault of its step, not the end."""
    steps: list[Step] = []

    @contextmanager
    def step(name: str, shown: str) -> Iterator[Step]:
        now = Step(name, shown, problems=[])
        steps.append(now)
        progress(name, 0, 0)
        begin = SystemClock().monotonic()
        try:
            yield now
        except StoreError as e:
            now.fault(f"{type(e).__name__}: {e}")
        now.seconds = SystemClock().monotonic() - begin

    queues: Counter[Queue] = Counter()
    with kvstore.open(folder, _CONFIG) as store, step("put", "one message a line, indexed") as now:
        sample = _put(store, source, queues, now)
    sizes = _sizes(folder, queues)
    with kvstore.open(folder, _CONFIG) as store:
        with step("pull", "every queue: the lines of its files, in order, once") as now:
            _pull(store, source, now)
        with step("get, find, query", "a sample by offset, position, id, key and time") as now:
            answers = [_ask(store, *item, now) for item in sample]
        with step("pop", "each message once, under a lock of its own; acked") as now:
            pop_topic(store, queues, now)
        with step("archive", "the older half of the segments, read back and compared") as now:
            sizes |= _archive(store, now)
        with step("read archives", "the sample again: each answer is the same") as now:
            for item, before in list(zip(sample, answers, strict=True))[:_ARCHIVED_SAMPLE]:
                after = _ask(store, *item, now)
                if after != before:
                    now.fault(f"{before} became {after}")
        store.create_topic(_KILLED, queues=1)
    with step("kill -9", "a child that writes with flush=sync; acknowledged messages") as now:
        now.count = acknowledged = write_and_kill(folder, _KILLED)
        if not acknowledged:
            now.fault("the child wrote nothing")
    with step("recover", "acknowledged messages are there, in order, once") as now:
        with kvstore.open(folder, _CONFIG) as store:
            for now.count, message in enumerate(_stored(store, _KILLED, 0), 1):
                if message.body != b"%012d" % (now.count - 1):
                    now.fault(f"{message} is not the next one")
        if now.count < acknowledged:
            now.fault(f"{now.count:,}, not {acknowledged:,}")
    with step("verify", "every checksum; log, index and archives agree") as now:
        with kvstore.open(folder, _CONFIG) as store:
            found = store.verify(progress=progress)
        now.count = found.records
        for one in found.problems:
            now.fault(f"{one.kind} at {one.position}: {one.message}")
    return steps, sizes


def _put(store: Store, source: Source, queues: Counter[Queue], step: Step) -> Sampled:
    """Puts the messages; returns a fair sample of them, the same at each run."""
    sample: Sampled = []
    draws = np.random.default_rng(1)
    messages = source.messages()
    while batch := list(islice(messages, _BATCH)):
        new = sorted({message.topic for message in batch} - {topic for topic, _ in queues})
        store.create_topics([TopicConfig(name=name, queues=QUEUES) for name in new])
        for message, result in zip(batch, store.put_batch(batch), strict=True):
            queues[result.topic, result.queue] += 1
            # A reservoir: each of the messages so far is in the sample with the same chance.
            slot = int(draws.integers(step.count + 1))
            if step.count < _SAMPLE:
                sample.append((message, result))
            elif slot < _SAMPLE:
                sample[slot] = (message, result)
            step.count += 1
    store.checkpoint()
    return sample


def _stored(store: Store, topic: str, queue: int) -> Iterator[StoredMessage]:
    """A queue from its first message on."""
    offset = 0
    while (found := store.pull(topic, queue, offset, limit=_PULL)).messages:
        yield from found.messages
        offset = found.next_offset


def _pull(store: Store, source: Source, step: Step) -> None:
    queues: dict[Queue, Iterator[StoredMessage]] = {}
    for step.count, put in enumerate(source.messages(), 1):
        queue = (put.topic, put.queue or 0)
        found = next(queues.setdefault(queue, _stored(store, *queue)), None)
        if found is None or _content(found) != _content(put):
            step.fault(f"{put} was expected, and {found} is there")
    for queue, rest in queues.items():
        for more in islice(rest, 1):
            step.fault(f"{queue} has more than was put: {more}")


def _content(message: Message | StoredMessage) -> tuple[object, ...]:
    own = message.user_properties if isinstance(message, StoredMessage) else message.properties
    return bytes(message.body), message.tag, list(message.keys), dict(own)


def _ask(store: Store, put: Message, at: PutResult, step: Step) -> list[object]:
    """Every way of reading one message; each must find it."""
    found = store.get(at.topic, at.queue, at.offset)
    same = [store.read_at(at.position), store.find(at.message_id)]
    keyed = store.query(at.topic, put.keys[0], limit=_PULL)
    first = store.offset_at(at.topic, at.queue, time=found.stored_at)
    step.count += 1
    if _content(found) != _content(put):
        step.fault(f"get found {found} and not {put}")
    if same != [found] * 2:
        step.fault(f"{found} was found as {same}")
    if found not in keyed and len(keyed) < _PULL:
        step.fault(f"{found} is not among the messages with key {put.keys[0]}")
    if first > at.offset:
        step.fault(f"{found} is before {first}, the first of its time")
    return [found, keyed, first]


def pop_topic(store: Store, queues: Counter[Queue], step: Step) -> None:
    """Pops one topic. Every 50th message is given back once, so it comes a second time."""
    topic = max(queues, key=lambda queue: min(queues[queue], _POPPED_MAX))[0]
    wanted = sum(count for queue, count in queues.items() if queue[0] == topic)
    wanted = min(wanted, _POPPED_MAX)
    store.create_group(_GROUP, backoff=[0.0])
    done: Counter[int] = Counter()
    returned = 0
    while done.total() < wanted and (popped := store.pop(_GROUP, topic, _PULL, invisible_for=60)):
        back = [one for one in popped if one.attempt == 1 and one.message.offset % 50 == 7]
        for one in back:
            store.change_invisible(one.receipt, 0)
        returned += len(back)
        kept = [one for one in popped if one not in back]
        store.ack_batch([one.receipt for one in kept])
        done.update(one.message.position for one in kept)
    step.count = done.total()
    if step.count < wanted:
        step.fault(f"{step.count} of {wanted} came")
    if step.count > len(done):
        step.fault(f"{topic}: {step.count - len(done)} were handed out after their ack")
    step.shown += f"; {returned:,} were given back first, and came again"


def _archive(store: Store, step: Step) -> dict[str, int]:
    from tiering import Policy, Worker

    if not store.segments():
        store.seal()
    half = max((len(store.segments()) + 1) // 2, 1)
    # By size: these messages are too young for any age.
    policy = Policy(warm="archive", max_bytes=half * store.stats().segment_size, watermarks=None)
    with Worker(store, policy) as worker:
        done = worker.run_once()
    step.count = done.messages
    if done.failed or not done.segments:
        step.fault(f"failed: {done.failed}")
    return {"log of these": done.raw_bytes, "archives": done.bytes}


def _sizes(folder: Path, queues: Counter[Queue]) -> dict[str, int]:
    """Bytes of a closed store, beside RocketMQ's queue files for the same queues."""
    index = index_sizes(folder)
    return {
        "queue index": index.of("runs", "places"),
        "key index": index.of("message_keys"),
        "RocketMQ's queue files": rocketmq_queue_files(queues.values())[0],
    }


def _show(
    out: Output, source: Source, folder: Path, steps: list[Step], sizes: dict[str, int]
) -> None:
    out.text(f"source  {source.title}\nstore   {folder}\n")
    out.table(
        ("step", "what was shown", "count", "seconds", "a second", ""),
        [
            (step.name, step.shown, step.count, f"{step.seconds:.2f}",
             f"{step.count / step.seconds:,.0f}" if step.seconds else "",
             "wrong" if step.problems else "ok")
            for step in steps
        ],
        right=("count", "seconds", "a second"),
    )  # fmt: skip
    out.text("")
    out.table(("on disk", "bytes"), [(name, size_text(size)) for name, size in sizes.items()])
    out.text("")
