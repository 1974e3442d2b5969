"""Unzipped: imports the compiled modules of a package, also where it is in a zip file.

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
from types import ModuleType
from zipimport import zipimporter


@contextmanager
def importable(package: str) -> Iterator[None]:
    """Within this block the compiled modules of a package can be imported, also from a zip file. An
    ImportError says how to compile what is missing.
    """
    try:
        with _unzipped(sys.modules[package]):
            yield
    except ImportError as e:
        if e.name is None or not e.name.startswith("kvstore.core"):
            raise
        raise ImportError(
            "kvstore.core is not compiled, or not wholly; in a checkout run `make setup`, elsewhere"
            " `pip install` anew",
            name=e.name,
        ) from e


@contextmanager
def _unzipped(module: ModuleType) -> Iterator[None]:
    loader: object = getattr(module.__spec__, "loader", None)
    if not isinstance(loader, zipimporter):
        yield
        return
    import zipfile  # noqa: PLC0415 # most processes never need it

    inside = module.__name__.replace(".", "/") + "/"
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
