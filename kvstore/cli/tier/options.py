"""What the verbs `tier ...`, `restore` and `erase` share: the policy, settings of places, keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tiering.archive.crypto import KeyProvider
    from tiering.policy import Policy

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

policy_option: Option = click.option(
    "--policy", "policy_file", metavar="FILE", required=True, type=_FILE,
    help="A TOML file with a tiering.Policy.",
)  # fmt: skip
keys_option: Option = click.option(
    "--keys", "keys_file", metavar="FILE", type=_FILE,
    help="The key file of topics that are encrypted.",
)  # fmt: skip


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


place_option: Option = click.option(
    "--place-option", "settings", type=Setting(), multiple=True,
    help="A setting of the object store, such as endpoint=URL; secrets belong in the environment.",
)  # fmt: skip


def read_policy(file: Path) -> Policy:
    """The policy in a TOML file."""
    from tiering.policy import Policy

    # What is not UTF-8 is not TOML either, and that is what the policy says then.
    return Policy.from_toml(file.read_text(encoding="utf-8", errors="replace"))


def read_keys(file: Path | None) -> KeyProvider | None:
    """The keys in a file."""
    if file is None:
        return None
    from tiering.archive.keyfile import KeyFile

    return KeyFile(file)
