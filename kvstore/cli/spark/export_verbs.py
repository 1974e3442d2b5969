"""The verbs `spark export`, new messages as Parquet or as tables of Iceberg, and `spark package`,
kvmq itself in a zip file, for a cluster that does not have it.

Invariants: the first signal lets the look under way end, the second one ends it at once; whatever
ends a run, the next one goes on from there. The same source gives the same zip file, so a cache by
content has a hit.
"""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from kvstore.cli.spark.spark_options import Spark, source_options, spark_options
from kvstore.cli.terminal.options import Access, LocalPath, Setting, access_options
from kvstore.cli.terminal.output import Output, output_option, size_text
from kvstore.cli.tier.worker import on_signal
from kvstore.clock import SystemClock
from kvstore.files import LocalFiles

if TYPE_CHECKING:
    from tiering.spark.export import ExportReport

_MEBIBYTE: int = 1 << 20
_TARGET: int = 128


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@click.option("--topics", metavar="NAMES", help="Between commas; default: all.")
@click.option("--format", "form", type=click.Choice(["parquet", "iceberg"]), default="parquet",
              show_default=True)  # fmt: skip
@click.option("--schema", "schema_file", metavar="FILE",
              type=LocalPath(exists=True, dir_okay=False),
              help="Schemas of JSON bodies, by topic: an object of JSON.")  # fmt: skip
@click.option("--infer", metavar="TOPIC", multiple=True,
              help="Find the schema of a topic's JSON bodies, and keep it.")  # fmt: skip
@click.option("--keep-body", is_flag=True, help="Keep the bodies of typed messages as well.")
@click.option("--compact", is_flag=True, help="Put small files together afterwards.")
@click.option("--file-size", metavar="MIB", type=click.IntRange(min=1), default=_TARGET,
              show_default=True, help="About how large those of --compact become.")  # fmt: skip
@click.option("--catalog", type=Setting(), multiple=True,
              help="A property of Iceberg's catalog, such as type=rest, uri=URL; default: one in "
              "TARGET.")  # fmt: skip
@click.option("--table", metavar="NAME", help="Iceberg's table; default: kvmq.messages.")
@click.option("--option", "options", type=Setting(), multiple=True,
              help="An option of reading, such as damaged=skip.")  # fmt: skip
@click.option("--watch", is_flag=True, help="Go on, and look again at intervals.")
@click.option("--interval", type=click.FloatRange(min=0.05), default=60.0, show_default=True,
              metavar="SECONDS", help="Between two looks of --watch.")  # fmt: skip
@spark_options
@access_options
@output_option
def export(
    out: Output, source: str, target: str, topics: str | None,
    form: Literal["parquet", "iceberg"],
    schema_file: Path | None, infer: tuple[str, ...], keep_body: bool, compact: bool,
    file_size: int, catalog: tuple[tuple[str, str], ...], table: str | None,
    options: tuple[tuple[str, str], ...], watch: bool,
    interval: float, spark: Spark, access: Access,
) -> None:  # fmt: skip
    """Export the messages of SOURCE that are not in the folder TARGET yet.

    SOURCE is a store's folder, with its log, or a folder or the URL of a bucket of archives. TARGET
    is a folder, or a URL that Spark can write to. Each message is exported once, however runs end.
    """
    from tiering.spark.export import ExportForm
    from tiering.spark.export import export as run
    from tiering.spark.export.schemas import read_schemas

    schemas = None
    if schema_file is not None:
        text = schema_file.read_text(encoding="utf-8", errors="replace")
        schemas = read_schemas(text, str(schema_file))
    wanted = ExportForm(
        format=form, schemas=schemas, infer=infer, keep_body=keep_body, table=table,
        catalog=dict(catalog),
    )  # fmt: skip
    with out.progress() as report, spark.session(report) as session:
        once = partial(
            run, session, source, target, wanted, topics=_listed(topics),
            options={**source_options(access), **dict(options)},
            compact_to=file_size * _MEBIBYTE if compact else None,
        )  # fmt: skip
        if not watch:
            _show(out, once())
            return
        watched(out, once, interval)


def watched(out: Output, once: Callable[[], ExportReport], interval: float) -> None:
    """Exports again and again, until a signal comes."""
    clock = SystemClock()
    stopping = threading.Event()
    with on_signal(stopping.set, once=True):
        while not stopping.is_set():
            done = once()
            if done.batches:
                _show(out, done, line=True)
            clock.wait(stopping, interval)


def _listed(names: str | None) -> list[str] | None:
    return None if names is None else [one.strip() for one in names.split(",") if one.strip()]


def _show(out: Output, done: ExportReport, *, line: bool = False) -> None:
    if out.json:
        (out.line if line else out.document)(done)
        return
    rows: list[tuple[object, ...]] = [
        (topic, one.messages, one.files, size_text(one.bytes), one.rejected)
        for topic, one in sorted(done.topics.items())
    ]
    if len(rows) != 1:
        whole = done.total
        rows.append(("all", whole.messages, whole.files, size_text(whole.bytes), whole.rejected))
    columns = ("topic", "messages", "files", "size", "set aside")
    out.table(columns, rows, right=columns[1:])
    out.text(f"{done.batches:,} batches, to {done.target}")
    if done.total.rejected:
        where = f"{done.target}/_kvmq_rejected"
        out.text(f"messages whose body doesn't fit are in {where}, with the reason", fg="yellow")
    made = done.compacted
    if made is not None and made.files_before:
        out.text(
            f"{made.files_before:,} small files ({size_text(made.bytes_before)}) became "
            f"{made.files_after:,} ({size_text(made.bytes_after)})"
        )


PACKAGES: Final = ("kvstore", "tiering", "pyspark_kvmq")
_ROOT: Final = Path(__file__).resolve().parents[3]
_WHEN: Final = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip file can say."""


@click.command()
@click.argument("target", metavar="FILE", type=LocalPath(dir_okay=False))
@output_option
def package(out: Output, target: Path) -> None:
    """Write kvmq as a zip FILE, for `spark-submit --py-files FILE`.

    The packages that kvmq needs are not in it: the cluster's Python must have them, and be of this
    one's version, on machines of this kind, since part of kvmq is compiled.
    """
    data = packed(_ROOT)
    LocalFiles().write_new(target, [data], replace=True)
    if out.json:
        out.document({"file": str(target), "bytes": len(data)})
    else:
        out.text(f"{target}: {size_text(len(data))}; spark-submit --py-files {target} ...")


def packed(root: Path) -> bytes:
    """The sources below a folder, and its compiled modules, zipped."""
    found = BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _sources(root):
            info = zipfile.ZipInfo(path.relative_to(root).as_posix(), _WHEN)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
    return found.getvalue()


def _sources(root: Path) -> Iterator[Path]:
    for name in PACKAGES:
        yield from sorted((root / name).rglob("*.py"))
    yield from sorted((root / "kvstore" / "core").rglob(f"*{EXTENSION_SUFFIXES[0]}"))
