"""Policy places: the places of a policy, opened for one store.

The idea: a policy names places as texts, and only a store can resolve a relative one. So this
module finds the conflicts that no text shows: two names of one folder, and folders that are the
store's own.

Invariant: no archive is ever put where the store keeps, or clears away, other files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kvstore.clock import Clock
from kvstore.files import Files
from tiering.catalog.catalog import Tier
from tiering.errors import PolicyIllegal
from tiering.places.place import Place, open_kept
from tiering.places.settings import is_remote
from tiering.places.work_folder import WORK
from tiering.policy.policy import Policy, expanded

_OWN: Final = frozenset({"commitlog", "index", WORK})
"""Folders of a store that may not be places for archives."""


def open_places(
    policy: Policy, folder: Path, options: Mapping[str, object], files: Files, clock: Clock
) -> dict[Tier, Place]:
    """The places by tier; `options` are settings of object stores. Raises PolicyIllegal, and the
    errors of opening a place.
    """
    found: dict[Tier, Place] = {}
    tiers: tuple[tuple[Tier, str | None], ...] = ("warm", policy.warm), ("cold", policy.cold)
    for tier, where in tiers:
        if where is not None:
            kept = where if "://" in where else expanded(where)
            place = open_kept(kept, folder, options=options, files=files, clock=clock)
            _check_outside(tier, place, folder)
            found[tier] = place
    if len(found) > 1 and _identity(found["warm"]) == _identity(found["cold"]):
        raise PolicyIllegal(
            f"warm and cold are both {found['cold'].name!r}: what goes cold would stay where it "
            "is; give them two places, or leave one out"
        )
    return found


def _identity(place: Place) -> str:
    """A place's identity under all its names: its URL, or its folder's real path."""
    if is_remote(place.name):
        return place.name
    is_url = place.name.startswith("file://")
    path = unquote(urlsplit(place.name).path) if is_url else place.name
    return str(Path(path).resolve())


def _check_outside(tier: Tier, place: Place, folder: Path) -> None:
    path, inside = Path(_identity(place)), folder.resolve()
    if is_remote(place.name) or not path.is_relative_to(inside):
        return
    first = path.relative_to(inside).parts[:1]
    if not first or first[0] in _OWN:
        raise PolicyIllegal(
            f"{tier} is {place.name!r}, where the store keeps its own files; name another folder, "
            f"such as {str(folder / 'archive')!r}"
        )
