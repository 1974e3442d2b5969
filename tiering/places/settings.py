"""Settings: a place's URL and settings, split and checked.

The idea: a URL goes into catalogs, logs and messages, so it must hold no secret. A setting that
looks like a secret is refused there, not just hidden; the error points to `options` or the
environment.

Invariant: no message of this module quotes a setting's value, a user or a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tiering.errors import PlaceIllegal
from tiering.places.objects import is_key

SCHEMES: Final = ("file", "s3", "gs", "az")
_SECRET: Final = re.compile(r"secret|token|password|key|sas|credential|signature")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BUCKET_SIZES: Final = range(3, 256)
"""Characters that a bucket's name may have; no provider takes fewer than 3."""
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]")


def is_url(where: str) -> bool:
    """Whether a place is given by a URL, not by a path."""
    return "://" in where


def is_remote(where: str) -> bool:
    """Whether a place's path or URL leads to anything but a folder of this machine."""
    return is_url(where) and not where.startswith("file://")


class Address(NamedTuple):
    """A URL without its settings; `name` is the place's name."""

    scheme: str
    bucket: str
    prefix: str
    query: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The URL again, without settings."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @classmethod
    def of(cls, url: str) -> Address:
        """Splits a URL; if it is none, raises `PlaceIllegal`, which quotes no more than is safe."""
        try:
            parts = urlsplit(url)
        except ValueError:
            raise PlaceIllegal("a place's URL that is malformed", "") from None
        if parts.scheme not in SCHEMES:
            raise PlaceIllegal(
                f"no place is kept at {parts.scheme}:…; known are a path and "
                + ", ".join(f"{s}://" for s in SCHEMES),
                "",
            )
        if "@" in parts.netloc:
            raise PlaceIllegal(
                f"a {parts.scheme}:// URL with a user or a password in it; credentials come from "
                "the environment or from options",
                "",
            )
        prefix = unquote(parts.path).strip("/")
        name = parts.netloc
        if parts.scheme == "file":
            _check_file(parts)
        else:
            _check_bucket(parts.scheme, name, prefix)
        if parts.fragment:
            raise PlaceIllegal(f"{parts.scheme}://{name}: a place's URL has no # part", "")
        query = tuple(parse_qsl(parts.query, keep_blank_values=True))
        return cls(parts.scheme, name, prefix, query)


def _check_file(parts: SplitResult) -> None:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise PlaceIllegal("a file:// URL needs an absolute path: file:///mnt/archives", "")


def _check_bucket(scheme: str, bucket: str, prefix: str) -> None:
    if not _BUCKET.fullmatch(bucket):
        raise PlaceIllegal(
            f"a {scheme}:// URL needs a bucket, of letters, digits and ._-: "
            f"{scheme}://bucket/folder",
            "",
        )
    if len(bucket) not in _BUCKET_SIZES:
        raise PlaceIllegal(
            f"a {scheme}:// URL with a bucket whose name has {len(bucket)} characters: no provider "
            f"has names of fewer than {_BUCKET_SIZES[0]} or of more than {_BUCKET_SIZES[-1]}; what "
            "comes behind :// up to the next / is the bucket",
            "",
        )
    if prefix and not is_key(prefix):
        raise PlaceIllegal(
            f"{scheme}://{bucket}: the folder behind the bucket has parts of letters, digits and "
            "._=+@,- with one / between them, none beginning with a dot",
            "",
        )


def settings_of(address: Address, options: Mapping[str, object]) -> dict[str, object]:
    """All settings of a place, `options` over the URL's; `PlaceIllegal` for secrets in the URL."""
    exposed = sorted({name for name, _ in address.query if _SECRET.search(name.lower())})
    if exposed:
        raise PlaceIllegal(
            f"{address.name}: {', '.join(exposed)} in the URL would be seen in catalogs and logs; "
            "give it in the environment or in options",
            address.name,
        )
    found: dict[str, object] = {name.lower(): value for name, value in address.query}
    return found | {name.lower(): value for name, value in options.items()}


def seconds(settings: dict[str, object], name: str, default: float, place: str) -> float:
    """Takes a duration out of the settings."""
    return number(settings, name, default, place, least=0.0, most=86_400.0)


def number(
    settings: dict[str, object], name: str, default: float, place: str, *, least: float, most: float
) -> float:
    """Takes a number out of the settings; `PlaceIllegal` if it is none, or out of range."""
    given = settings.pop(name, default)
    try:
        found = float(given) if isinstance(given, str | int | float) else -1.0
    except ValueError:
        found = -1.0
    if isinstance(given, bool) or not least <= found <= most:
        raise PlaceIllegal(f"{place}: {name} is a number from {least:g} to {most:g}", place)
    return found


def check_endpoint(url: object, place: str) -> str:
    """An endpoint, if it is the URL of one: some bad texts make the client end the thread."""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        good = (
            parts.scheme in ("http", "https")
            and "@" not in parts.netloc
            and not parts.query
            and _HOST.fullmatch(re.sub(r":\d+$", "", parts.netloc)) is not None
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        good = False
    if not good:
        raise PlaceIllegal(
            f"{place}: endpoint is a URL such as https://host:9000, without user and password",
            place,
        )
    return str(url)
