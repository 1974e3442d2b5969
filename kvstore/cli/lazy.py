"""Lazy groups: verbs whose modules are imported when the verbs run.

Invariant: listing the verbs, with a line on each, imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import click

Verbs = Mapping[str, tuple[str, str]]
"""Verb, the module that has it (by its name, `_` for `-`; `import_` for `import`), its help."""


class LazyGroup(click.Group):
    """A group of the verbs in `verbs`."""

    verbs: ClassVar[Verbs] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`: in the order of the table, not of the alphabet."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group`."""
        entry = self.verbs.get(cmd_name)
        if entry is None:
            return None
        attribute = {"import": "import_"}.get(cmd_name, cmd_name.replace("-", "_"))
        command: click.Command = getattr(importlib.import_module(entry[0]), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: Any) -> None:
        """See `click.Group`: without importing the verbs."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, entry[1]) for name, entry in self.verbs.items()])
