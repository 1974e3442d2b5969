"""The verb `tier verify`: every archive's bytes, catalog and places, and objects in no catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvstore.cli.terminal.access import Access, access_options
from kvstore.cli.terminal.opening import config_option, folder_argument, open_store, time_text
from kvstore.cli.terminal.output import Output, output_option, size_text
from kvstore.cli.tier.working import Who, embedded, with_options, worker_call

if TYPE_CHECKING:
    from tiering.worker.audit import AuditReport


verify_options = with_options(
    folder_argument,
    click.option("--remove-orphans", is_flag=True, help="Remove them, once they are old enough."),
    click.option("--grace", type=click.FloatRange(min=0), default=3600.0, show_default=True,
                 metavar="SECONDS", help="Age from which on an orphan may be removed."),
    click.option("--place", "places", metavar="PLACE", multiple=True,
                 help="Another place to look for orphans in, a path or URL."),
    access_options,
    config_option,
    output_option,
)  # fmt: skip


@click.command()
@verify_options
def verify(
    out: Output, folder: Path, remove_orphans: bool, grace: float, places: tuple[str, ...],
    access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Check every archive of the store in DIR, and list objects in no catalog.

    All of each archive is read. Orphans are objects of this store that a worker which was cut off
    has left: they cost space only, and no exit code. Exit code 1 if there is a problem.
    """
    verify_with(
        out, embedded, folder, remove_orphans=remove_orphans, grace=grace, places=places,
        access=access, config_file=config_file,
    )  # fmt: skip


def verify_with(
    out: Output, who: Who, folder: Path, *, remove_orphans: bool, grace: float,
    places: tuple[str, ...], access: Access, config_file: Path | None,
) -> None:  # fmt: skip
    """Check archives with the given worker."""
    from tiering.executor.pool import Inline
    from tiering.keys.sources import provider_of
    from tiering.operations.inspection import places_of
    from tiering.worker.audit import audit

    is_read = not remove_orphans
    opened = open_store(
        out,
        folder,
        config_file,
        access=access,
        read_only=is_read,
        does=worker_call("verify", remove_orphans=True),
    )  # fmt: skip
    with opened as store:
        place_of, others = places_of(store, places)
        archives, files = store.config.archives, store.config.files
        with out.progress() as progress, who() as executor:
            report = audit(
                store.catalog, place_of, others, store.config.clock, executor or Inline(),
                options=archives.options, keys=provider_of(archives.keys, files), grace=grace,
                remove_orphans=remove_orphans, progress=progress,
            )  # fmt: skip
    if out.json:
        out.document(report)
    else:
        _show(out, report)
    if not report.ok:
        click.get_current_context().exit(1)


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
