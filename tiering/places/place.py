"""Place: the calls that every kind of place for archives has, and how a place is opened.

The idea: a place keeps whole, immutable objects under names. It can do little, so that a folder, a
network share and every object store can do the same: put (the first caller wins), read a range,
list, delete. Of the kind of a place, other rooms ask one thing only, `settings.is_remote`: a place
that is not a folder of this machine takes settings, and cannot be warm.

Invariants: a name leads to a whole object or to none, whatever was cut off. Of two callers that put
different bytes under one name with `if_absent` just one succeeds. A place's name holds no secret,
and neither do its errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from kvstore.clock import Clock, SystemClock
from kvstore.files import Files, LocalFiles, local_path
from tiering.errors import PlaceIllegal
from tiering.places.local import LocalPlace
from tiering.places.object_store import ObjectPlace
from tiering.places.objects import Given, ObjectInfo, ObjectSource, Pace
from tiering.places.settings import Address, is_remote, is_url, seconds, settings_of

__all__ = ["Given", "ObjectInfo", "ObjectSource", "Pace", "Place", "open_kept", "open_place"]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_LOCAL_RETRY: Final = 10.0


class Place(Protocol):
    """A place for archives. Threads may share one, and it can be pickled: a spawned process opens
    its copy anew. (A forked one must open its own.)

    All calls raise `PlaceUnavailable` when the place did not answer in time after all tries,
    `PlaceDenied` when it refuses, `ObjectNameIllegal` for an impossible name.
    """

    @property
    def name(self) -> str:
        """The path or URL, without secrets and settings."""
        ...

    def put(
        self, key: str, given: Given, *, if_absent: bool = True, pace: Pace | None = None
    ) -> ObjectInfo:
        """Puts a whole object; it is durable, and visible to all, when the call returns.

        With `if_absent` a taken name raises `ObjectExists`, unless the object there has the same
        bytes: then the put is done. `pace` is called with a number of bytes before as many are
        moved (again, where they are moved again). Neither `pace` nor a given stream may use an
        object store: they are called from inside the client. `PlaceFull` if there is no room.
        """
        ...

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; `ObjectNotFound`, or `ObjectTooShort`."""
        ...

    def info(self, key: str) -> ObjectInfo:
        """The object of that name; `ObjectNotFound` if there is none."""
        ...

    def size(self, key: str) -> int:
        """An object's bytes; `ObjectNotFound`."""
        ...

    def source(self, key: str, size: int | None = None) -> ObjectSource:
        """An object to be read in ranges; asks for its size once if the caller does not know it."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The objects whose names begin with `prefix`, in no promised order. The list is a hint: a
        listed object may be gone, and a new one may not be listed yet; `info` tells. Only the
        folder that the prefix names is searched.
        """
        ...

    def folders(self) -> Sequence[str]:
        """The names of the folders at the top, sorted; such a folder may hold nothing."""
        ...

    def delete(self, key: str) -> None:
        """Deletes the object; does nothing if it is gone."""
        ...

    def leftovers(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The leftovers of interrupted puts, of objects whose names begin with `prefix`; `list`
        shows none of them. The names are the place's own, for `remove_leftover`.
        """
        ...

    def remove_leftover(self, key: str) -> None:
        """Deletes one leftover, whose put is not under way any more; does nothing if it is gone."""
        ...

    def check(self, *, create: bool = False) -> None:
        """Tests that the place is there, can be written to, and refuses a taken name;
        `PlaceUnsuitable` if it does not refuse. `create` makes a missing local folder.
        """
        ...


def open_place(
    address: str | Path,
    *,
    options: Mapping[str, object] | None = None,
    files: Files | None = None,
    clock: Clock | None = None,
) -> Place:
    """The place at a path, or at a `file://`, `s3://`, `gs://` or `az://` URL.

    Settings come from the URL's query and from `options`, which wins (docs/places.md lists them);
    secrets only from `options` or the environment. This sends no request to the place yet: see
    `check`. `PlaceIllegal` if `address` is no place, `ExtraMissing` where the extra `cloud` is not
    installed.
    """
    files = LocalFiles() if files is None else files
    clock = SystemClock() if clock is None else clock
    text = str(address)
    if not text or "\0" in text:
        raise PlaceIllegal("a place needs a path or a URL; this is empty or holds a NUL", "")
    if not _SCHEME.match(text):
        path = local_path(text, "a place")
        return _local(path, dict(options or {}), text, files, clock)
    if isinstance(address, Path):
        raise PlaceIllegal("a place is a URL as a pathlib.Path, which breaks it; give a text", "")
    found = Address.of(text)
    settings = settings_of(found, options or {})
    if found.scheme == "file":
        named = unquote(urlsplit(text).path)
        return _local(Path(named), settings, found.name, files, clock)
    return ObjectPlace(found, settings, files=files, clock=clock)


def open_kept(
    where: str, folder: Path, *, options: Mapping[str, object], files: Files, clock: Clock
) -> Place:
    """The place with that name in the catalog or the policy of the store in `folder`; `options` are
    settings of the object stores.
    """
    # Relative to the store, so that a store that moved takes its archives along.
    if not is_url(where):
        return open_place(folder / where, files=files, clock=clock)
    used = options if is_remote(where) else None
    return open_place(where, options=used, files=files, clock=clock)


def _local(
    path: Path, settings: dict[str, object], name: str, files: Files, clock: Clock
) -> LocalPlace:
    retry_for = seconds(settings, "retry_for", _LOCAL_RETRY, name)
    if settings:
        raise PlaceIllegal(
            f"{name}: a folder knows the setting retry_for, not {', '.join(sorted(settings))}", name
        )
    return LocalPlace(path.absolute(), files=files, clock=clock, retry_for=retry_for)
