"""The option that verbs `tier ...` and `erase` share: the policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvstore.cli.terminal.access import Option
from kvstore.cli.terminal.paths import LocalPath

if TYPE_CHECKING:
    from tiering.policy.policy import Policy


def _policy_option(*, required: bool) -> Option:
    return click.option(
        "--policy", "policy_file", metavar="FILE", required=required,
        type=LocalPath(exists=True, dir_okay=False),
        help="A TOML file with a tiering.Policy; paths in it are relative to it.",
    )  # fmt: skip


policy_option: Option = _policy_option(required=True)
policy_option_at_need: Option = _policy_option(required=False)


def read_policy(file: Path) -> Policy:
    """The policy in a TOML file; relative paths in it are relative to the file's folder."""
    from tiering.policy.policy import Policy

    # Bytes that are not UTF-8 are not TOML either, and the policy's error then says so.
    text = file.read_text(encoding="utf-8", errors="replace")
    return Policy.from_toml(text, relative_to=file.absolute().parent)
