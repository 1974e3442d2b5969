"""Putting: an archive comes to where it belongs, announced before and read back after.

The idea: the name is noted, the object put on condition that the name is free, and read back. What
goes wrong takes the object away again; so does the next worker, if this one was killed in between.

Invariant: only what was put here is ever taken away. A name that somebody else was first to take
(another worker, another copy of this store) is theirs, and stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvstore.errors import ArchiveDamaged
from tiering.copying import read_whole
from tiering.errors import ObjectExists, ObjectNotFound, PlaceError, TieringStopped
from tiering.intents import Intent, Intents
from tiering.place import Place

Pace = Callable[[int], object]


def put_announced(
    intents: Intents, intent: Intent, place: Place, path: Path, uploading: Pace, reading: Pace
) -> None:
    """Put the file at `path` under the intent's name. The intent is to be forgotten once the
    catalog has it. Raises PlaceError, ArchiveDamaged, TieringStopped; nothing is left then.
    """
    intents.note(intent)
    try:
        place.put(intent.key, path, pace=uploading)
        _read_back(place, intent, reading)
    except ObjectExists:
        intents.forget(intent.number)
        raise
    except (PlaceError, ArchiveDamaged, TieringStopped):
        with suppress(PlaceError):
            place.delete(intent.key)
            intents.forget(intent.number)
        raise


def _read_back(place: Place, intent: Intent, pace: Pace) -> None:
    found = read_whole(place, intent.key, intent.size, pace=pace)
    if found != intent.crc or place.size(intent.key) != intent.size:
        raise ArchiveDamaged(
            f"{place.name}/{intent.key} is not what was put there: crc32c {found:#010x}, not "
            f"{intent.crc:#010x}; nothing was changed in the store, the next run puts it again",
            f"{place.name}/{intent.key}",
        )


def take_away(place: Place, intent: Intent) -> bool:
    """Have what was announced and never came into the catalog gone, if it is there and is what was
    announced; returns whether something went. Raises PlaceError.
    """
    try:
        if place.size(intent.key) != intent.size:
            return False
        if read_whole(place, intent.key, intent.size) != intent.crc:
            return False
    except ObjectNotFound:
        return False
    place.delete(intent.key)
    return True
