"""Client errors: turns an object store client's exceptions into our errors.

The idea: the client tells the kind of failure by the kind of its exception, and the rest by a text
that holds the server's answer. Status and code are taken out of that text. The text itself is not
passed on, because it can quote signed addresses and signed requests.

Invariant: every failure becomes a `PlaceError`, or a `Transient` if asking again may help.
"""

from __future__ import annotations

import re
from typing import Final

from tiering.errors import (
    ObjectNotFound,
    PlaceDenied,
    PlaceError,
    PlaceFull,
    PlaceIllegal,
    PlaceUnavailable,
    PlaceUnsuitable,
)
from tiering.places.retry import Transient

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>|\"(?:code|reason)\": ?\"(\w{1,64})\"")
_ASKED_FOR_CREDENTIALS: Final = re.compile(
    r"/latest/api/token|/latest/meta-data|169\.254\.|metadata\.google|/computeMetadata/"
    r"|/metadata/identity|oauth2|sts\.|credential",
    re.IGNORECASE,
)
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_FULL: Final = ("XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "DiskFull")
_DENIED_CODES: Final = ("ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "AccessDenied")
_PASSING: Final = (408, 409, 425, 429)
_CREDENTIAL_TRIES: Final = 3


def exists_already(e: Exception) -> bool:
    """Whether the name is taken, or was being taken by another caller at that moment."""
    return type(e).__name__ in ("AlreadyExistsError", "PreconditionError")


def status_of(e: Exception) -> int:
    """The HTTP status of the answer, 0 if there was none."""
    found = _STATUS.search(str(e))
    return int(found[1]) if found else 0


def failure(e: Exception, what: str, place: str, key: str) -> Exception:
    """The error to raise in place of the client's."""
    text = str(e)
    kind = type(e).__name__
    status = status_of(e)
    said = _said(text, status)
    if any(word in text for word in _NO_BUCKET):
        return PlaceUnavailable(
            f"{place}: could not {what}: there is no such bucket ({said}); make it, or correct the "
            "URL or the endpoint",
            place,
        )
    if isinstance(e, FileNotFoundError):
        return ObjectNotFound(f"{place} has no object {key}", place)
    if status == 507 or any(word in text for word in _FULL):
        return PlaceFull(f"{place}: no room to {what} ({said}); make room there", place)
    if (
        kind in ("PermissionDeniedError", "UnauthenticatedError")
        or status in (401, 403)
        or any(f"<Code>{code}</Code>" in text for code in _DENIED_CODES)
    ):
        return _denied(what, place, said)
    if kind in ("NotSupportedError", "NotImplementedError") or status in (405, 501):
        return PlaceUnsuitable(f"{place} can't {what} ({said})", place)
    if "builder error" in text:
        return PlaceIllegal(
            f"{place}: the endpoint can't be asked; for one without TLS set allow_http=true", place
        )
    if status == 0 and _ASKED_FOR_CREDENTIALS.search(text.partition("\n")[0]):
        return Transient(
            "found no credentials in the environment, and none were to be had from the machine's "
            "service; set them (docs/places.md)",
            PlaceDenied,
            _CREDENTIAL_TRIES,
        )
    if 300 <= status < 500 and status not in _PASSING:
        return PlaceUnavailable(f"{place}: could not {what}: it refused ({said})", place)
    return Transient(said)


def _denied(what: str, place: str, said: str) -> PlaceError:
    return PlaceDenied(
        f"{place}: may not {what} ({said}); check the credentials in the environment, and that "
        "they may list, read, write and delete there",
        place,
    )


def _said(text: str, status: int) -> str:
    """The server's answer, in a few words that can't hold a secret."""
    code = _CODE.search(text)
    if status:
        return f"HTTP {status}" + (f" {code[1] or code[2]}" if code else "")
    lowered = text.lower()
    if "timedout" in lowered or "timed out" in lowered or "kind: timeout" in lowered:
        return "no answer in time"
    if "refused" in lowered:
        return "connection refused"
    if "dns" in lowered:
        return "its name can't be resolved"
    return "connection failed, or the answer was cut off"
