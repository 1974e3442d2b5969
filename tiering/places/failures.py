"""Failures: refusals of disks, places and their clients become our errors, or are tried again.

The idea: a step uses many files, and some calls let an `OSError` through. The caller of a step
expects a `StoreError`; so the outermost call of each step converts it here, once (`typed`).

A request to a place raises `Transient` for a failure that may pass by itself, and `Retry` repeats
it. Pauses double from try to try and are drawn at random from their upper half, so that many
callers that failed together don't come back together.

An object store's client tells the kind of failure by the kind of its exception, and the rest by a
text that holds the server's answer. Status and code are taken out of that text. The text itself is
not passed on, because it can quote signed addresses and signed requests.

Invariants: `typed` changes nothing but an `OSError`; no try begins later than `total` seconds after
the first one did; every failure of a client becomes a `PlaceError`, or a `Transient` if asking
again may help.
"""

from __future__ import annotations

import errno
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from kvstore.clock import Clock
from kvstore.errors import DiskFull, StoreError
from tiering.errors import (
    FileRefused,
    ObjectNotFound,
    PlaceDenied,
    PlaceError,
    PlaceFull,
    PlaceIllegal,
    PlaceUnavailable,
    PlaceUnsuitable,
)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def typed(folder: Path) -> Iterator[None]:
    """Raises the operating system's refusals as `DiskFull`, or as `FileRefused`; `folder` is named
    where the refusal names no file.
    """
    try:
        yield
    except OSError as e:
        what, why = e.filename or folder, e.strerror or str(e)
        if e.errno in _FULL:
            raise DiskFull(f"no room for {what}: {why}; free disk space, then try again") from e
        raise FileRefused(f"{what} is refused: {why}; see to the disk, then try again") from e


def told_of(why: Exception) -> str:
    """The text of an error; with its kind if the error was not expected, since its text may be
    empty.
    """
    is_known = isinstance(why, StoreError | OSError)
    return str(why) if is_known else f"{type(why).__name__}: {why}"


_GRAINS: Final = 1 << 20
_T = TypeVar("_T")


class Transient(Exception):
    """A failure that may pass. `verdict` is the error if it does not, `tries` the most tries."""

    def __init__(
        self, found: str, verdict: type[PlaceError] = PlaceUnavailable, tries: int = 1 << 30
    ) -> None:
        super().__init__(found)
        self.verdict = verdict
        self.tries = tries


def at_random() -> float:
    """A number from 0 to 1."""
    return secrets.randbelow(_GRAINS) / _GRAINS


class Retry:
    """The limits of retrying, in seconds: `total` for all tries, `first` and `most` for a pause."""

    def __init__(
        self,
        clock: Clock,
        total: float,
        *,
        first: float = 0.1,
        most: float = 5.0,
        draw: Callable[[], float] = at_random,
    ) -> None:
        self._clock = clock
        self._total = total
        self._first = first
        self._most = most
        self._draw = draw

    def run(self, ask: Callable[[], _T], what: str, place: str) -> _T:
        """The result of `ask`, in the end; else a `PlaceError` that says `what` was asked of
        `place`.
        """
        begun = self._clock.monotonic()
        pause = self._first
        tries = 0
        while True:
            tries += 1
            try:
                return ask()
            except Transient as e:
                waits = pause * (0.5 + self._draw() / 2)
                spent = self._clock.monotonic() - begun
                if tries >= e.tries or spent + waits > self._total:
                    # The cause may quote a request, and a request may quote a secret.
                    raise e.verdict(
                        f"{place}: could not {what}: {e}; tried {tries} times in {spent:.1f} s",
                        place,
                    ) from None
            self._clock.sleep(waits)
            pause = min(2 * pause, self._most)


_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>|\"(?:code|reason)\": ?\"(\w{1,64})\"")
_ASKED_FOR_CREDENTIALS: Final = re.compile(
    r"/latest/api/token|/latest/meta-data|169\.254\.|metadata\.google|/computeMetadata/"
    r"|/metadata/identity|oauth2|sts\.|credential",
    re.IGNORECASE,
)
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_FULL_CODES: Final = ("XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "DiskFull")
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
    if status == 507 or any(word in text for word in _FULL_CODES):
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
