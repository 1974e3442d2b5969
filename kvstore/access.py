"""Access: with what a store reads its archives, and how much memory that may take.

The idea: keys of encrypted topics and settings of the places belong to whoever opens the store, not
to its catalog; so they are settings of an opening, in a Struct of their own. Nothing here knows
what an archive is.

Invariant: no text that is made of it shows a setting's value, since secrets are among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kvstore.errors import ConfigError, shown
from kvstore.files import Files
from kvstore.paths import local_path

_NUMBERS: Final = {
    "cache_bytes": (0, 1 << 62),
    "open_bytes": (0, 1 << 62),
    "readers": (1, 256),
    "read_ahead": (0, 256),
}
_KEYS: Final = ("key_for_writing", "key_for_reading")


class ArchiveAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How archives are reached; `StoreConfig.archives`, in TOML the table `[archives]`.

    `keys`: those of encrypted topics, as the path of a key file or, given by a program, a
    `tiering.KeyProvider`; None: what is encrypted can't be read. `options` are settings of object
    stores (docs/places.md); a folder is given none of them.

    `cache_bytes` of decoded blocks are kept, and archives are kept open whose directories and
    filters take `open_bytes` together; of either at least one, whatever it takes. Filters alone,
    for look-ups by key, are kept in as many bytes once more. At most `readers` reads are under way
    at once; a reader that goes on where it stopped gets `read_ahead` blocks before it asks."""

    keys: Any = None
    options: dict[str, Any] = {}
    cache_bytes: int = 64 << 20
    open_bytes: int = 256 << 20
    readers: int = 4
    read_ahead: int = 2

    def __post_init__(self) -> None:
        _check_keys(self.keys)
        _check_options(self.options)
        for name, (least, most) in _NUMBERS.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ConfigError(
                    f"archives.{name} is {shown(value)}; it must be a whole number, {least} to "
                    f"{most}"
                )

    def __repr__(self) -> str:
        given = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name != "options" and getattr(self, name) is not None
        }
        fields = [f"{name}={value!r}" for name, value in given.items()]
        return f"ArchiveAccess({', '.join([*fields, f'options={sorted(self.options)}'])})"

    def with_given(
        self, keys: object | None = None, options: Mapping[str, object] | None = None
    ) -> ArchiveAccess:
        """The same with other keys, if any are given, and with these settings before its own."""
        return msgspec.structs.replace(
            self,
            keys=self.keys if keys is None else keys,
            options={**self.options, **(options or {})},
        )

    def check_there(self, files: Files) -> None:
        """Raise `ConfigError` if the key file is named, and is not there: without this a mistyped
        name would look as if all keys were destroyed.
        """
        if isinstance(self.keys, str | Path) and files.size(local_path(self.keys, "keys")) is None:
            raise ConfigError(
                f"archives.keys is {str(self.keys)!r}, and no file is there; a first key is "
                "made by tiering.KeyFile(path).make(topic)"
            )


def _check_keys(keys: object) -> None:
    if keys is None or (isinstance(keys, str | Path) and str(keys) and "\0" not in str(keys)):
        return
    missing = [name for name in _KEYS if not callable(getattr(keys, name, None))]
    if missing:
        raise ConfigError(
            f"archives.keys is {shown(keys)}; it must be None, the path of a key file, or a "
            f"tiering.KeyProvider, which has {', '.join(_KEYS)}"
        )


def _check_options(options: object) -> None:
    # Their values are not shown: secrets are among them.
    if not isinstance(options, dict) or not all(isinstance(n, str) and n for n in options):
        raise ConfigError(
            f"archives.options is a {type(options).__name__}; it must be a dict of settings by name"
        )
