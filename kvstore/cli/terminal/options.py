"""Options: the arguments and options that verbs share, and their types.

The idea: each is declared once. Paths are read as the store's calls read them, so `~` is home and a
URL is refused; a shell replaces `~` only at the beginning of a word: not in `--config=~/kvmq.toml`,
and not for a program that runs the command without a shell. `--keys` and `--place-option` override
the settings of `--config` wherever archives are read from then on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec

from kvstore import StoreConfig
from kvstore.files import local_path

if TYPE_CHECKING:
    from tiering.policy.policy import Policy


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


Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def listed(*options: Option) -> Option:
    """Options, in the order in which help lists them, as one decorator."""

    def decorated(verb: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            verb = option(verb)
        return verb

    return decorated


def one_argument(argument: str, make: Callable[..., Any], **options: Option) -> Option:
    """Options that a verb gets as one argument: `make` of their values, which are named here."""

    def decorated(verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def with_argument(*args: Any, **given: Any) -> Any:
            values = {name: given.pop(name) for name in options}
            return verb(*args, **given, **{argument: make(**values)})

        return listed(*options.values())(with_argument)

    return decorated


class Setting(click.ParamType[tuple[str, str]]):
    """A name and a text: NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """See `click.ParamType`."""
        name, is_there, text = str(value).partition("=")
        if not (name and is_there):
            self.fail(f"{value!r} is not like NAME=VALUE", param, ctx)
        return name, text


class Clearable(click.ParamType[Any]):
    """A value of another type, or a word for no value of its own, which becomes `CLEARED`."""

    CLEARED: Final = object()

    def __init__(self, kind: click.ParamType[Any], word: str) -> None:
        self.name = f"{kind.name}|{word}"
        self._kind = kind
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        is_word = value in (self._word, self.CLEARED)
        return self.CLEARED if is_word else self._kind.convert(value, param, ctx)


def given_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given; None for one that is cleared."""
    given = {name: value for name, value in settings.items() if value is not None}
    return {name: None if v is Clearable.CLEARED else v for name, v in given.items()}


def changes_of(settings: dict[str, Any]) -> dict[str, Any]:
    """As `given_of`; raises `click.UsageError` if there are none."""
    if changes := given_of(settings):
        return changes
    raise click.UsageError("give what to change; --help lists the settings")


class Access(NamedTuple):
    """The access to archives on the command line."""

    keys_file: Path | None
    options: dict[str, str]

    def of(self, config: StoreConfig) -> StoreConfig:
        """The settings, overridden by this access."""
        archives = config.archives.with_given(self.keys_file, self.options)
        return msgspec.structs.replace(config, archives=archives)

    def words(self) -> list[str]:
        """The options as they are written on a command line."""
        keys = [] if self.keys_file is None else ["--keys", str(self.keys_file.absolute())]
        settings = [("--place-option", f"{n}={value}") for n, value in self.options.items()]
        return [*keys, *(word for pair in settings for word in pair)]

    def place_options(self, store_id: str | None) -> dict[str, object]:
        """The options of a place, of whose stores `store_id` names one if it has several."""
        return {**self.options, **({} if store_id is None else {"store_id": store_id})}


keys_option: Option = click.option(
    "--keys", "keys_file", metavar="FILE",
    type=LocalPath(exists=True, dir_okay=False),
    help="The key file of topics that are encrypted.",
)  # fmt: skip
place_option: Option = click.option(
    "--place-option", "settings", type=Setting(), multiple=True,
    help="A setting of the object store, such as endpoint=URL; secrets belong in the environment.",
)  # fmt: skip


access_options: Option = one_argument(
    "access",
    lambda keys_file, settings: Access(keys_file, dict(settings)),
    keys_file=keys_option,
    settings=place_option,
)
"""The options `--keys` and `--place-option`, as the argument `access`."""


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
