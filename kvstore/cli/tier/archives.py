"""The verbs `tier list`, `history`, `verify`, `attach` and `key`: a store's archives, the steps
that were done to them, their bytes, archives from elsewhere, and the key file of encrypted topics.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvstore import ServedStore
from kvstore.cli.terminal.opening import (
    Word,
    config_option,
    folder_argument,
    open_store,
    read_config,
    require_store,
    time_text,
    written_call,
)
from kvstore.cli.terminal.options import LocalPath
from kvstore.cli.terminal.output import Output, exit_if, output_option, show_report, size_text
from kvstore.cli.tier.worker import Job, job_options, worker_call

if TYPE_CHECKING:
    from tiering.worker.audit import AuditReport


@click.command(name="list")
@folder_argument
@config_option
@output_option
def list_(out: Output, folder: Path, config_file: Path | None) -> None:
    """List the archives of the store in DIR, oldest first, and segments that can't be archived.

    With --json archives alone; `kvmq stats --json` has what is left alone, by tier.
    """
    from tiering.catalog.catalog import decode_rows
    from tiering.places.work_folder import FILE, WORK, read_waits

    with open_store(out, folder, config_file, read_only=True, own=True) as store:
        rows = decode_rows(store.catalog().rows)
        waits = read_waits(folder / WORK / FILE, store.config.files)
    columns = ("archive", "tier", "place", "class", "messages", "records", "bytes", "stored until")
    shown = [
        (
            row.key.rpartition("/")[2],
            row.tier if row.state == "live" else f"{row.tier}, until {_until(row.delete_at)}",
            row.place,
            row.retention_class,
            row.messages,
            size_text(row.raw_bytes),
            size_text(row.size),
            time_text(row.last_stored_at),
        )
        for row in rows
    ]
    out.show(rows, columns, shown, right=("records", "bytes"))
    if waits and not out.json:
        left = [(wait.what, wait.tries, time_text(wait.until), wait.why) for wait in waits]
        out.table(
            ("left alone", "tries", "tried again at", "why"), left, title="could not be moved"
        )


def _until(delete_at: int | None) -> str:
    return "now" if delete_at is None else time_text(delete_at)


@click.command()
@folder_argument
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True,
              help="Only the newest.")  # fmt: skip
@config_option
@output_option
def history(out: Output, folder: Path, limit: int, config_file: Path | None) -> None:
    """Show the steps that tiering did in the store in DIR, oldest first."""
    from tiering.places.work_folder import WORK
    from tiering.worker.runs import History

    require_store(folder)
    config = read_config(config_file)
    done = History(folder / WORK / "history.jsonl", config.files, config.clock).last(limit)
    columns = ("when", "what", "of", "messages", "records", "bytes", "seconds", "why")
    rows = [
        (
            time_text(one.at), one.what, one.source, one.messages,
            size_text(one.raw_bytes), size_text(one.bytes), one.seconds, one.note,
        )
        for one in done
    ]  # fmt: skip
    out.show(done, columns, rows, right=("records", "bytes"))


_GRACE: Final = 3600.0


@click.command()
@folder_argument
@click.option("--remove-orphans", is_flag=True, help="Remove them, once they are old enough.")
@click.option("--grace", type=click.FloatRange(min=0), default=_GRACE, show_default=True,
              metavar="SECONDS", help="Age from which on an orphan may be removed.")  # fmt: skip
@click.option("--place", "places", metavar="PLACE", multiple=True,
              help="Another place to look for orphans in, a path or URL.")  # fmt: skip
@job_options
def verify(job: Job, remove_orphans: bool, grace: float, places: tuple[str, ...]) -> None:
    """Check every archive of the store in DIR, and list objects in no catalog.

    All of each archive is read. Orphans are objects of this store that a worker which was cut off
    has left: they cost space only, and no exit code. Exit code 1 if there is a problem.
    """
    from kvstore.opening.viewing import read_catalog
    from tiering.executor.pool import Inline
    from tiering.keys.key_file import provider_of
    from tiering.operations.inspection import places_of
    from tiering.worker.audit import AuditContext, audit

    out = job.out
    served = job.served() if remove_orphans else None
    if served is not None:
        with served:
            _show_report(out, _audited(out, served, grace, places))
        return
    opened = open_store(
        out, job.folder, job.config_file, access=job.access, read_only=not remove_orphans,
        does=worker_call("verify", remove_orphans=True), own=True,
    )  # fmt: skip
    with opened as store, out.progress() as progress, job.executor() as executor:
        place_of, others = places_of(store, places)
        archives, files = store.config.archives, store.config.files
        present = partial(read_catalog, store.path, store.config)
        audited = AuditContext(
            catalog=store.catalog if remove_orphans else present, place_of=place_of, places=others,
            clock=store.config.clock, executor=executor or Inline(), options=archives.options,
            keys=provider_of(archives.keys, files), progress=progress,
        )  # fmt: skip
        report = audit(audited, grace=grace, remove_orphans=remove_orphans)
    _show_report(out, report)


def _audited(out: Output, store: ServedStore, grace: float, places: tuple[str, ...]) -> AuditReport:
    """The report of a server's worker, which goes by its own policy."""
    from tiering.operations.served_worker import ServedWorker

    if grace != _GRACE or places:
        raise click.UsageError(
            "the server removes orphans by its policy's grace time and in its places; leave out "
            "--grace and --place, or stop the server"
        )
    with out.progress() as report:
        return ServedWorker(store, progress=report).verify(remove_orphans=True)


def _show_report(out: Output, report: AuditReport) -> None:
    if out.json:
        out.document(report)
    else:
        _show(out, report)
    exit_if(not report.ok)


def _show(out: Output, report: AuditReport) -> None:
    rows = [
        ("archives", f"{report.archives:,}"),
        ("messages", f"{report.messages:,}"),
        ("bytes", size_text(report.bytes)),
        ("replaced, not removed yet", f"{report.retired:,}"),
        ("orphans", f"{len(report.orphans):,}"),
        ("problems", f"{len(report.problems):,}"),
    ]
    out.table(("what", "value"), rows, right=("value",))
    if report.orphans:
        states = {(False, False): "", (True, False): "young, stays", (False, True): "removed"}
        orphans = [
            (f"{o.place}/{o.key}", size_text(o.bytes), time_text(o.modified),
             states[o.young, o.removed])
            for o in report.orphans
        ]  # fmt: skip
        out.table(("orphan", "bytes", "written", ""), orphans, right=("bytes",))
    if report.problems:
        columns = ("archive", "block", "problem")
        out.table(
            columns,
            [(p.archive, p.block if p.block >= 0 else "-", p.reason) for p in report.problems],
        )
    else:
        out.text("no problem found", fg="green")


@click.command()
@folder_argument
@click.argument("source", metavar="SOURCE")
@click.option("--topic", "topics", multiple=True, help="Only this one; may be given again.")
@click.option("--store-id", metavar="HEX", help="Which store, where SOURCE has several.")
@job_options
def attach(job: Job, source: str, topics: tuple[str, ...], store_id: str | None) -> None:
    """Bring the archives in SOURCE, a path or URL, into the store in DIR.

    Messages keep topic, queue and offset; the store must have none of these offsets. They get other
    positions. Topics that the store lacks are made. All messages come, or none. An archive is
    written anew into DIR; what is in SOURCE stays.
    """
    import tiering
    from tiering.places.settings import is_url

    does = written_call(
        "tiering", "attach", [Word("store"), source],
        {
            "topics": list(topics) or None,
            "options": None if store_id is None else {"store_id": store_id},
        },
    )  # fmt: skip
    served = job.served()
    if served is not None:
        with served, job.out.progress() as progress:
            show_report(
                job.out,
                tiering.ServedWorker(served, progress=progress).attach(
                    source if is_url(source) else str(Path(source).expanduser().absolute()),
                    topics=topics or None, options=job.access.place_options(store_id),
                ),
            )  # fmt: skip
        return
    opened = open_store(
        job.out, job.folder, job.config_file, access=job.access, does=does, own=True
    )
    with opened as store, job.out.progress() as progress:
        report = tiering.attach(
            store, source, topics=topics or None, options=job.access.place_options(store_id),
            progress=progress,
        )  # fmt: skip
    show_report(job.out, report)


@click.group()
def key() -> None:
    """Keys of topics whose archives are encrypted, in a key file."""


@key.command()
@click.argument("file", type=LocalPath(dir_okay=False))
@click.argument("topic")
@output_option
def make(out: Output, file: Path, topic: str) -> None:
    """Give TOPIC a key in FILE, if it has none; the file is made if it is not there.

    From then on this topic's messages are encrypted when they are archived with this file; `kvmq
    tier reencrypt` encrypts older archives. Losing the file loses the encrypted messages: keep
    copies away from the archives. The key itself is not shown.
    """
    from tiering.keys.key_file import KeyFile

    keys = KeyFile(file)
    is_new = topic not in keys.topics()
    made = keys.make(topic)
    if out.json:
        out.document({"topic": topic, "key_id": made.key_id, "made": is_new})
    elif is_new:
        out.text(f"{topic} has the key {made.key_id} now", fg="green")
    else:
        out.text(f"{topic} had the key {made.key_id}, and keeps it")


@key.command(name="list")
@click.argument("file", type=LocalPath(exists=True, dir_okay=False))
@output_option
def list_keys(out: Output, file: Path) -> None:
    """List the topics that have a key in FILE."""
    from tiering.keys.key_file import KeyFile

    topics = KeyFile(file).topics()
    out.show(topics, ("topic",), [(topic,) for topic in topics])
