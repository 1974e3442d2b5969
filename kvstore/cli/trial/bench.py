"""The verb `bench`: a quick measurement of this machine; the repository's `bench/` has the full
one.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

import kvstore
from kvstore.cli.terminal.output import Output, output_option
from kvstore.cli.terminal.paths import LocalPath
from kvstore.cli.terminal.sizes import index_sizes
from kvstore.cli.trial import measure
from kvstore.cli.trial.measure import Load, Timed


@click.command()
@click.argument("folder", metavar="[DIR]", required=False,
                type=LocalPath(exists=True, file_okay=False))  # fmt: skip
@click.option("--messages", type=click.IntRange(min=1), default=200_000, show_default=True)
@click.option("--size", type=click.IntRange(min=0), default=128, show_default=True,
              help="Bytes of a body.")  # fmt: skip
@click.option("--topics", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--queues", type=click.IntRange(min=1), default=8, show_default=True)
@output_option
def bench(
    out: Output, folder: Path | None, messages: int, size: int, topics: int, queues: int
) -> None:
    """Measure put, pull, get and query in a new store inside DIR or the temporary folder.

    One process, one thread; every message has a tag, a key, a property and a unique id, and is
    indexed within the time of the put. The store is removed afterwards.
    """
    load = Load(messages=messages, body=size, topics=topics, queues=queues)
    place = Path(tempfile.mkdtemp(prefix="kvmq-bench-", dir=folder))
    try:
        found = _measure(out, place / "store", load)
        sizes = index_sizes(place / "store")
    finally:
        shutil.rmtree(place)
    queue_bytes = sizes.of("runs", "places") / messages
    key_bytes = sizes.of("message_keys") / (2 * messages)  # the key and the unique id
    if out.json:
        rates = {name: round(timed.rate) for name, timed in found.items()}
        out.document(
            {"load": load, "per_second": rates}
            | {"queue_index_bytes_per_message": queue_bytes, "key_index_bytes_per_key": key_bytes}
        )
        return
    rows = [(name, t.count, t.seconds, f"{t.rate:,.0f} /s") for name, t in found.items()]
    out.table(("what", "count", "seconds", "rate"), rows)
    out.text(f"index: {queue_bytes:.1f} bytes a message and {key_bytes:.1f} bytes a key")


def _measure(out: Output, folder: Path, load: Load) -> dict[str, Timed]:
    reads = min(load.messages, 20_000)
    with out.progress() as report, kvstore.open(folder) as store:
        measure.create_topics(store, load)
        found = {f"put_batch({load.batch})": measure.put_batches(store, load, report)}
        report("pulling", 0, 0)
        found["pull(32)"] = measure.pull_everything(store, load)
        report("getting", 0, 0)
        found["get, random offset"] = measure.get_at_random(store, load, reads)
        report("querying", 0, 0)
        found["query, random key"] = measure.query_at_random(store, load, reads)
    return found
