"""The verb `spark package`: kvmq itself in a zip file, for a cluster that does not have it.

Invariant: the same source gives the same bytes, so a cache by content has a hit.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

import click

from kvstore.cli.terminal.output import Output, output_option, size_text
from kvstore.cli.terminal.paths import LocalPath

PACKAGES: Final = ("kvstore", "tiering", "pyspark_kvmq")
_ROOT: Final = Path(__file__).resolve().parents[3]
_WHEN: Final = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip file can say."""


@click.command()
@click.argument("target", metavar="FILE", type=LocalPath(dir_okay=False))
@output_option
def package(out: Output, target: Path) -> None:
    """Write kvmq as a zip FILE, for `spark-submit --py-files FILE`.

    The packages that kvmq needs are not in it: the cluster's Python must have them.
    """
    from kvstore.files import LocalFiles

    data = packed(_ROOT)
    LocalFiles().write_new(target, [data], replace=True)
    if out.json:
        out.document({"file": str(target), "bytes": len(data)})
    else:
        out.text(f"{target}: {size_text(len(data))}; spark-submit --py-files {target} ...")


def packed(root: Path) -> bytes:
    """The sources below a folder, zipped."""
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
