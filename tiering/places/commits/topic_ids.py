"""Topic ids: the id of each topic in the archives of a store's jobs.

The idea: topics have ids in archives, and tasks that do not know each other must give the same
ones. Lists of ids are put on condition, numbered one behind the other. A task that comes second
reads the first one's list, and goes on behind it. A job gets the ids that were known when it began,
so that it reads newer lists alone.

Invariants: lists are never changed; an id is given to one topic, and a topic has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kvstore.errors import FormatError
from tiering.errors import ObjectExists, ObjectNotFound
from tiering.places.object_names import ids_key
from tiering.places.place import Place


class TopicIds(NamedTuple):
    """The ids of topics by name, from the first `lists` lists."""

    ids: Mapping[str, int]
    lists: int


NO_IDS = TopicIds({}, 0)


def read_ids(place: Place, store_id: str, known: TopicIds = NO_IDS) -> TopicIds:
    """All ids that were given. Raises FormatError, PlaceError."""
    ids, number = dict(known.ids), known.lists
    while True:
        try:
            ids |= _read_list(place, ids_key(store_id, number))
        except ObjectNotFound:
            return TopicIds(ids, number)
        number += 1


def _read_list(place: Place, key: str) -> dict[str, int]:
    data = place.read(key, 0, place.size(key))
    try:
        return msgspec.json.decode(data, type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise FormatError(
            f"{place.name}/{key} is no list of topic ids: {e}; copy it from a backup of the place"
        ) from e


def take_ids(
    place: Place,
    store_id: str,
    names: Sequence[str],
    *,
    known: TopicIds = NO_IDS,
    given: Mapping[str, int] | None = None,
) -> TopicIds:
    """Ids that include one for each of these topics. `given` are ids that these topics must have,
    and that no other topic may get. Raises FormatError, PlaceError.
    """
    given = given or {}
    while True:
        known = read_ids(place, store_id, known)
        missing = [name for name in dict.fromkeys(names) if name not in known.ids]
        if not missing:
            return known
        following = max([0, *known.ids.values(), *given.values()]) + 1
        new: dict[str, int] = {}
        for name in missing:
            new[name] = given.get(name) or following
            following += new[name] == following
        try:
            place.put(ids_key(store_id, known.lists), msgspec.json.encode(new, order="sorted"))
        except ObjectExists:
            continue  # another task was first: its ids hold
