"""Paths: arguments are read as the store's calls read them, so `~` is home and a URL is refused.

A shell replaces `~` by the home folder only at the beginning of a word: not in
`--config=~/kvmq.toml`, and not for a program that runs the command without a shell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvstore.files import local_path


class LocalPath(click.Path):
    """A `click.Path` that gives a `pathlib.Path`. `-` stays as it is where it is allowed."""

    def __init__(self, **checks: Any) -> None:
        super().__init__(path_type=Path, **checks)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        if not (value == "-" and self.allow_dash):
            value = local_path(value, "a file" if self.file_okay else "a folder")
        return super().convert(value, param, ctx)


class LocalFile(click.File):
    """A `click.File` whose path is read as `LocalPath` reads one; `-` is standard input."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        if isinstance(value, str) and value != "-":
            value = str(local_path(value, "a file"))
        return super().convert(value, param, ctx)
