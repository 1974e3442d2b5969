"""Access: the options for keys of encrypted topics and settings of object stores.

The idea: `--keys` and `--place-option` are declared once, for every verb that reads archives. They
override the settings of `--config` wherever archives are read from then on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from kvstore import StoreConfig
from kvstore.cli.terminal.paths import LocalPath

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


class Setting(click.ParamType[tuple[str, str]]):
    """A setting of an object store: NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """See `click.ParamType`."""
        name, is_there, text = str(value).partition("=")
        if not (name and is_there):
            self.fail(f"{value!r} is not like NAME=VALUE", param, ctx)
        return name, text


class Access(NamedTuple):
    """The access to archives on the command line."""

    keys_file: Path | None
    options: dict[str, str]

    def of(self, config: StoreConfig) -> StoreConfig:
        """The settings, overridden by this access."""
        archives = config.archives.with_given(self.keys_file, self.options)
        return msgspec.structs.replace(config, archives=archives)


keys_option: Option = click.option(
    "--keys", "keys_file", metavar="FILE",
    type=LocalPath(exists=True, dir_okay=False),
    help="The key file of topics that are encrypted.",
)  # fmt: skip
place_option: Option = click.option(
    "--place-option", "settings", type=Setting(), multiple=True,
    help="A setting of the object store, such as endpoint=URL; secrets belong in the environment.",
)  # fmt: skip


def access_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options `--keys` and `--place-option`, as the argument `access`."""

    @place_option
    @keys_option
    @functools.wraps(verb)
    def with_access(
        *args: Any, keys_file: Path | None, settings: tuple[tuple[str, str], ...], **options: Any
    ) -> Any:
        return verb(*args, access=Access(keys_file, dict(settings)), **options)

    return with_access
