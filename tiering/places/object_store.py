"""Archives on object stores: S3, Google, Azure, and servers with the same protocols.

The idea: the client (obstore) does the talking and the signing. This module adds the promises of
`tiering.places.place.Place`. A small object is one conditional put. A large one goes up in parts
under a name of its own, because the client's uploads in parts can't be conditional. Then the server
copies it to its name, on condition that the name is free; S3 does such a copy as an upload in parts
whose completion is conditional.

Invariants: with `if_absent` every request that gives an object its name carries the condition. A
"taken" is decided by comparing bytes, because a retry also hears it if its first try had succeeded.
The client's texts may hold secrets, and are not passed on.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from kvstore.clock import Clock
from kvstore.errors import CallerError
from kvstore.files import Files
from tiering.errors import (
    ExtraMissing,
    ObjectNameIllegal,
    ObjectNotFound,
    ObjectTooShort,
    PlaceError,
    PlaceIllegal,
    PlaceUnsuitable,
)
from tiering.places.failures import Retry, Transient, exists_already, failure, status_of
from tiering.places.objects import (
    Chunks,
    Content,
    Given,
    ObjectInfo,
    ObjectSource,
    Pace,
    check_key,
    check_same,
    is_key,
)
from tiering.places.settings import Address, check_endpoint, number, seconds

UNFINISHED: Final = ".uploading"
"""The folder, in the place's, of objects that do not have their names yet."""

_CLASSES: Final = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_OF_CLIENT: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "root_certificate",
        "user_agent",
    }
)
_ENDPOINTS: Final = (
    "endpoint",
    "aws_endpoint",
    "aws_endpoint_url",
    "aws_endpoint_url_s3",
    "azure_endpoint",
    "azure_storage_endpoint",
)
"""Names of the endpoint in the settings; in capitals, in the environment."""
_UNKNOWN: Final = re.compile(r"Configuration key: '(\w+)'")
_PART: Final = 8 << 20
_PARTS_AT_ONCE: Final = 3
_PART_TRIES: Final = 4
_PAGE: Final = 1000
_COPY_MAX: Final = 5 << 30
_FAR: Final = 1 << 60
"""No object ends there, and the client counts in 64 bits."""


class ObjectPlace:
    """See `tiering.places.place.Place`; `settings` are those of docs/places.md."""

    def __init__(
        self, address: Address, settings: dict[str, object], *, files: Files, clock: Clock
    ) -> None:
        left = dict(settings)
        self.name = name = address.name
        self._address = address
        self._settings = settings
        self._files = files
        self._clock = clock
        self._timeout = seconds(left, "timeout", 30.0, name)
        self._connect_timeout = seconds(left, "connect_timeout", 5.0, name)
        self._upload_timeout = seconds(left, "upload_timeout", 300.0, name)
        self._retry_for = seconds(left, "retry_for", 60.0, name)
        self._whole_max = int(
            number(left, "whole_put_bytes", 2 * _PART, name, least=0, most=1 << 30)
        )
        self._client = {k: left.pop(k) for k in sorted(_OF_CLIENT & left.keys())}
        self._config = _config(address, left, self._client, name)
        self._retry = Retry(clock, self._retry_for)
        self._lock = threading.Lock()
        self._stores: dict[tuple[float, int], Any] = {}
        self._obstore = _client_library(name)
        self._reading()  # makes the client, so that an impossible setting is refused now

    def __reduce__(self) -> tuple[Callable[..., ObjectPlace], tuple[object, ...]]:
        return _opened_again, (self._address, self._settings, self._files, self._clock)

    def __repr__(self) -> str:
        return f"ObjectPlace({self.name!r})"

    # --- putting ---

    def put(
        self, key: str, given: Given, *, if_absent: bool = True, pace: Pace | None = None
    ) -> ObjectInfo:
        """See `Place.put`."""
        check_key(key, self.name)
        content = Content(given, self._files)
        if content.size > _COPY_MAX and if_absent:
            raise PlaceError(
                f"{self.name}: {key} has {content.size} bytes; an object store copies {_COPY_MAX} "
                "at most, so lower the size of archives",
                self.name,
            )
        if content.size > self._whole_max:
            return self._put_large(key, content, if_absent, pace)
        data = content.whole(pace)

        def put() -> ObjectInfo | None:
            return self._commit(
                key, content, lambda: self._put_whole(key, data, if_absent), if_absent
            )

        return self._done(key, content, self._retry.run(put, f"put {key}", self.name))

    def _put_whole(self, key: str, data: bytes, if_absent: bool) -> None:
        mode = "create" if if_absent else "overwrite"
        self._obstore.put(self._writing(), key, data, mode=mode, use_multipart=False)

    def _put_large(
        self, key: str, content: Content, if_absent: bool, pace: Pace | None
    ) -> ObjectInfo:
        if not if_absent:
            self._upload(key, content, pace)
            return self._done(key, content, None)
        try:
            return check_same(self, self.info(key), content)  # the same bytes need no upload
        except ObjectNotFound:
            pass
        unfinished = f"{UNFINISHED}/{secrets.token_hex(8)}/{key}"
        try:
            self._upload(unfinished, content, pace)

            def copy() -> ObjectInfo | None:
                return self._commit(key, content, lambda: self._copy(unfinished, key), True)

            found = self._retry.run(copy, f"put {key} in place", self.name)
            return self._done(key, content, found)
        finally:
            self._discard(unfinished)

    def _upload(self, key: str, content: Content, pace: Pace | None) -> None:
        def upload() -> None:
            chunks = Chunks(content, pace)
            try:
                self._obstore.put(
                    self._uploading(),
                    key,
                    chunks,
                    use_multipart=True,
                    chunk_size=_PART,
                    max_concurrency=_PARTS_AT_ONCE,
                )
            except Exception as e:
                # The client itself gives up the parts, also when the failure was on our side.
                if chunks.error is not None:
                    raise chunks.error from None
                raise self._failure(e, f"upload {key}", key) from None

        self._retry.run(upload, f"upload {key}", self.name)

    def _copy(self, source: str, target: str) -> None:
        self._obstore.copy(self._writing(), source, target, overwrite=False)

    def _commit(
        self, key: str, content: Content, send: Callable[[], None], if_absent: bool
    ) -> ObjectInfo | None:
        """Sends the request that names the object; returns the present object if it has the same
        bytes.
        """
        try:
            send()
        except Exception as e:
            if not (if_absent and exists_already(e)):
                raise self._failure(e, f"put {key}", key) from None
        else:
            return None
        try:
            return check_same(self, self.info(key), content)
        except ObjectNotFound:
            # Taken by a caller that has not finished, or whose object was removed again.
            raise Transient("the name was taken and is free again") from None

    def _done(self, key: str, content: Content, found: ObjectInfo | None) -> ObjectInfo:
        found = self.info(key) if found is None else found
        if found.size != content.size:
            raise PlaceError(
                f"{self.name}/{key} has {found.size} bytes after {content.size} were put; somebody "
                "else has replaced it, or the place does not keep what it is given",
                self.name,
            )
        return found

    def _discard(self, key: str) -> None:
        """Deletes an object that is not needed any more, if that is possible; otherwise `leftovers`
        shows it.
        """
        try:
            self._obstore.delete(self._reading(), key)
        except Exception:
            return

    # --- reading ---

    def read(self, key: str, offset: int, size: int) -> bytes:
        """See `Place.read`."""
        check_key(key, self.name)
        if offset < 0 or size < 0:
            raise CallerError(f"{self.name}/{key}: no {size} bytes can begin at {offset}")
        if size == 0:
            return b""

        def read() -> bytes:
            data = self._range(key, offset, size) if offset + size <= _FAR else b""
            if len(data) == size:
                return data
            held = self._head(key).size
            if offset + size > held:
                raise ObjectTooShort(
                    f"{self.name}/{key} has {held} bytes; asked for were {size} from {offset}",
                    self.name,
                    held,
                )
            raise Transient(f"got {len(data)} bytes of {size}")

        return self._retry.run(read, f"read {key}", self.name)

    def _range(self, key: str, offset: int, size: int) -> bytes:
        """The bytes that there are of a range; an answer may be short."""
        try:
            return bytes(self._obstore.get_range(self._reading(), key, start=offset, length=size))
        except Exception as e:
            if status_of(e) == 416:
                return b""
            raise self._failure(e, f"read {key}", key) from None

    def info(self, key: str) -> ObjectInfo:
        """See `Place.info`."""
        check_key(key, self.name)
        return self._retry.run(lambda: self._head(key), f"look at {key}", self.name)

    def size(self, key: str) -> int:
        """See `Place.size`."""
        return self.info(key).size

    def source(self, key: str, size: int | None = None) -> ObjectSource:
        """See `Place.source`."""
        check_key(key, self.name)
        return ObjectSource(self, key, self.size(key) if size is None else size)

    def _head(self, key: str) -> ObjectInfo:
        try:
            return _info(self._obstore.head(self._reading(), key))
        except FileNotFoundError:
            # Such an answer has no body to say whether the object or the bucket is missing.
            self._range(key, 0, 1)
            raise Transient("it is there for a read, and not for a look") from None
        except Exception as e:
            raise self._failure(e, f"look at {key}", key) from None

    # --- listing and deleting ---

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Place.list`."""
        folder = prefix.rpartition("/")[0]
        for found in self._pages(folder) if not folder or is_key(folder) else ():
            if found.key.startswith(prefix) and is_key(found.key):
                yield found

    def _pages(self, folder: str) -> Iterator[ObjectInfo]:
        """Every object in a folder; a listing that broke is resumed behind its last name."""
        stream: Iterator[Any] | None = None
        last: str | None = None

        def page() -> Any:
            nonlocal stream
            try:
                if stream is None:
                    stream = iter(
                        self._obstore.list(
                            self._reading(), folder or None, offset=last, chunk_size=_PAGE
                        )
                    )
                return next(stream, None)
            except Exception as e:
                stream = None
                raise self._failure(e, "list", folder) from None

        while (found := self._retry.run(page, "list", self.name)) is not None:
            for meta in found:
                last = meta["path"]
                yield _info(meta)

    def folders(self) -> Sequence[str]:
        """See `Place.folders`."""

        def top() -> Sequence[str]:
            try:
                found = self._obstore.list_with_delimiter(self._reading())
            except Exception as e:
                raise self._failure(e, "list", "") from None
            return sorted(name for name in found["common_prefixes"] if is_key(name))

        return self._retry.run(top, "list", self.name)

    def delete(self, key: str) -> None:
        """See `Place.delete`."""
        self._delete(check_key(key, self.name))

    def _delete(self, key: str) -> None:
        def delete() -> None:
            try:
                self._obstore.delete(self._reading(), key)
            except Exception as e:
                raise self._failure(e, f"delete {key}", key) from None

        try:
            self._retry.run(delete, f"delete {key}", self.name)
        except ObjectNotFound:
            return

    def leftovers(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See `Place.leftovers`."""
        for found in self._pages(UNFINISHED):
            if found.key.split("/", 2)[-1].startswith(prefix):
                yield found

    def remove_leftover(self, key: str) -> None:
        """See `Place.remove_leftover`."""
        if not key.startswith(f"{UNFINISHED}/"):
            raise ObjectNameIllegal(f"{self.name}: {key!r} is no leftover of a put", self.name)
        self._delete(key)

    # --- checking ---

    def check(self, *, create: bool = False) -> None:
        """See `Place.check`: puts a probe twice and copies it twice; a bucket is never made."""
        for _ in self._pages(UNFINISHED):
            break
        probe = f"{UNFINISHED}/check/{secrets.token_hex(8)}"
        copied = probe + ".copy"
        try:
            self._try_out(lambda: self._put_whole(probe, b"kvmq", True))
            refused = self._try_out(lambda: self._put_whole(probe, b"kvmq", True))
            self._try_out(lambda: self._copy(probe, copied))
            refused = self._try_out(lambda: self._copy(probe, copied)) and refused
        finally:
            self._discard(copied)
            self._discard(probe)
        if not refused:
            raise PlaceUnsuitable(
                f"{self.name} lets the second of two puts of one name through, so two workers "
                "could both commit; it needs conditional puts (If-None-Match)",
                self.name,
            )

    def _try_out(self, send: Callable[[], None]) -> bool:
        """Sends a request; returns whether it was refused because the name is taken."""

        def once() -> bool:
            try:
                send()
            except Exception as e:
                if exists_already(e):
                    return True
                raise self._failure(e, "write a probe", "probe") from None
            return False

        return self._retry.run(once, "write a probe", self.name)

    # --- the client ---

    def _reading(self) -> Any:
        return self._store(self._timeout, 0)

    def _writing(self) -> Any:
        return self._store(self._upload_timeout, 0)

    def _uploading(self) -> Any:
        """The client for parts, which retries itself: one failed part must not cost the others."""
        return self._store(self._upload_timeout, _PART_TRIES)

    def _store(self, timeout: float, tries: int) -> Any:
        with self._lock:
            found = self._stores.get((timeout, tries))
            if found is None:
                found = self._stores[timeout, tries] = self._make(timeout, tries)
        return found

    def _make(self, timeout: float, tries: int) -> Any:
        client: dict[str, Any] = {
            "timeout": timedelta(seconds=timeout),
            "connect_timeout": timedelta(seconds=self._connect_timeout),
            **self._client,
        }
        retry = {"max_retries": tries, "retry_timeout": timedelta(seconds=self._retry_for)}
        make = getattr(self._obstore.store, _CLASSES[self._address.scheme])
        try:
            return make(
                self._address.bucket,
                prefix=self._address.prefix or None,
                config=self._config,
                client_options=client,
                retry_config=retry,
            )
        except Exception as e:
            # The text may quote a value.
            unknown = _UNKNOWN.search(str(e))
            given = ", ".join(sorted(self._settings)) or "none were given"
            raise PlaceIllegal(
                f"{self.name}: "
                + (
                    f"there is no setting {unknown[1]}"
                    if unknown
                    else f"its settings don't do (given: {given}; the rest is the environment's)"
                ),
                self.name,
            ) from None

    def _failure(self, e: Exception, what: str, key: str) -> Exception:
        return failure(e, what, self.name, key)


def _config(
    address: Address, settings: dict[str, object], client: dict[str, object], name: str
) -> dict[str, object]:
    """The configuration of the client's store. It also states the settings that an endpoint
    implies.
    """
    for key in _ENDPOINTS:
        given = settings.get(key, os.environ.get(key.upper()))
        if given is not None and check_endpoint(given, name).startswith("http://"):
            client.setdefault("allow_http", True)
    defaults: dict[str, object] = {}
    if address.scheme == "s3":
        # Every server that speaks S3 knows the single delete.
        defaults = {"copy_if_not_exists": "multipart", "disable_bulk_delete": "true"}
    return defaults | settings


def _client_library(name: str) -> Any:
    try:
        importlib.import_module("obstore.store")
        return importlib.import_module("obstore")
    except ImportError:
        raise ExtraMissing(
            f"{name} needs the package obstore: pip install 'kvmq[cloud]'", "cloud"
        ) from None


def _opened_again(
    address: Address, settings: dict[str, object], files: Files, clock: Clock
) -> ObjectPlace:
    return ObjectPlace(address, settings, files=files, clock=clock)


def _info(meta: Any) -> ObjectInfo:
    modified: datetime = meta["last_modified"]
    return ObjectInfo(meta["path"], meta["size"], round(modified.timestamp() * 1000))
