"""Unzipped: the compiled modules of a package that is imported from a zip file.

The idea: Spark's workers get kvmq as one zip file (`kvmq spark package`), from which Python imports
everything but compiled modules. So these are written to a folder for the time of their import; the
system needs no file of a module that it has loaded.

Invariants: only compiled modules of this package, for this Python, are written; a process that ends
by a signal, as Spark's workers do, leaves no folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from tempfile import TemporaryDirectory
from zipimport import zipimporter


@contextmanager
def importable(package: str) -> Iterator[None]:
    """Within this block the compiled modules of a package can be imported, also from a zip file."""
    module = sys.modules[package]
    loader: object = getattr(module.__spec__, "loader", None)
    if not isinstance(loader, zipimporter):
        yield
        return
    import zipfile  # noqa: PLC0415 # most processes never need it

    inside = package.replace(".", "/") + "/"
    with TemporaryDirectory(prefix="kvmq-core-") as folder:
        with zipfile.ZipFile(loader.archive) as archive:
            for name in archive.namelist():
                is_inside = name.rpartition("/")[0] + "/" == inside
                if is_inside and name.endswith(tuple(EXTENSION_SUFFIXES)):
                    (Path(folder) / Path(name).name).write_bytes(archive.read(name))
        module.__path__.append(folder)
        try:
            yield
        finally:
            module.__path__.remove(folder)
