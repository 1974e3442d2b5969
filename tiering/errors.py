"""Errors of tiering that no read of the store raises; those are in `kvstore.errors`.

Invariant: a call that raised one of these changed nothing that a reader sees.
"""

from __future__ import annotations

from kvstore.errors import ConfigError, StoreError


class PolicyIllegal(ConfigError):
    """A tiering policy that is out of range or contradicts itself."""


class EncryptionMissing(ConfigError):
    """Something is encrypted, or to be, and the package that does it is not installed."""


class PlaceError(StoreError):
    """Base of what goes wrong with a place that keeps archives; `place` is its path or URL."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class PlaceUnavailable(PlaceError):
    """The place does not answer, or not in time, after all tries."""


class PlaceDenied(PlaceError):
    """The place refuses the credentials, or what they may do does not include this."""


class PlaceFull(PlaceError):
    """The place has no room."""


class ObjectNotFound(PlaceError):
    """The place has no object of that name."""


class ObjectExists(PlaceError):
    """An object of that name is there already: somebody else has committed first."""


class TieringBusy(StoreError):
    """Another worker does this for this store."""
