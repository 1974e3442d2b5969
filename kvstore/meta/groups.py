"""Consumer groups as rows of the `groups` family.

Invariants: a row is on the disk before anything can be keyed by the group's id; ids are given once,
and what is keyed by one goes with its row; what is refused changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kvstore.errors import CallerError, GroupExists, GroupNotFound, IndexDamaged, MessageIllegal
from kvstore.index.families import Families
from kvstore.index.keys import GROUPS, META, NEXT_GROUP_ID, OFFSETS, U32
from kvstore.meta.attributes import attributes_of
from kvstore.record.validate import check_group

ATTEMPTS_MAX: Final = (1 << 31) - 1


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a group is made with. `max_attempts`: deliveries of a message before it is a dead
    letter.
    """

    name: str
    max_attempts: int = 16
    ordered: bool = False
    attributes: dict[str, str] = {}


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it is."""

    name: str
    id: int
    max_attempts: int
    ordered: bool
    attributes: dict[str, str]


class Groups:
    """See the module."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._cache: dict[str, GroupInfo] = {}
        self._lock = threading.RLock()
        found = families.get(META, NEXT_GROUP_ID)
        self._next_id = U32.unpack(found)[0] if found else 1

    def find(self, name: str) -> GroupInfo | None:
        """A group, or None."""
        if not isinstance(name, str):
            raise MessageIllegal(f"the group is {name!r}; it must be a text")
        found = self._cache.get(name)
        if found is None:
            # Under the lock: what is altered or deleted meanwhile must not be kept as it was.
            with self._lock:
                row = self._families.get(GROUPS, name.encode("utf-8", "surrogatepass"))
                if row is not None:
                    found = self._cache[name] = _decode(name, row)
        return found

    def get(self, name: str) -> GroupInfo:
        """A group; `GroupNotFound`."""
        found = self.find(name)
        if found is None:
            raise GroupNotFound(f"there is no group {name!r}; create it with create_group")
        return found

    def for_commit(self, name: str) -> GroupInfo:
        """A group to commit an offset for; it is made if it is new."""
        found = self.find(name)
        if found is None:
            try:
                found = self.create([GroupConfig(name=name)])[0]
            except GroupExists:
                found = self.get(name)
        return found

    def create(self, configs: Iterable[GroupConfig]) -> list[GroupInfo]:
        """Make groups, all or none, durably."""
        made: list[GroupInfo] = []
        with self._lock:
            batch = self._families.batch()
            names: set[str] = set()
            for config in configs:
                check_group(config.name)
                _check(config.max_attempts, config.ordered)
                if config.name in names or self.find(config.name) is not None:
                    raise GroupExists(f"group {config.name!r} exists already")
                names.add(config.name)
                info = GroupInfo(
                    name=config.name,
                    id=self._next_id + len(made),
                    max_attempts=config.max_attempts,
                    ordered=config.ordered,
                    attributes=attributes_of(config.attributes),
                )
                made.append(info)
                batch.put(GROUPS, info.name.encode(), msgspec.msgpack.encode(info))
            batch.put(META, NEXT_GROUP_ID, U32.pack(self._next_id + len(made)))
            self._families.write(batch, sync=True)
            self._next_id += len(made)
        return made

    def alter(
        self,
        name: str,
        *,
        max_attempts: int | None,
        ordered: bool | None,
        attributes: Mapping[str, str] | None,
    ) -> GroupInfo:
        """Change a group, durably; what is None stays."""
        with self._lock:
            old = self.get(name)
            max_attempts = old.max_attempts if max_attempts is None else max_attempts
            ordered = old.ordered if ordered is None else ordered
            _check(max_attempts, ordered)
            new = msgspec.structs.replace(
                old,
                max_attempts=max_attempts,
                ordered=ordered,
                attributes=attributes_of(old.attributes if attributes is None else attributes),
            )
            batch = self._families.batch()
            batch.put(GROUPS, name.encode(), msgspec.msgpack.encode(new))
            self._families.write(batch, sync=True)
            self._cache[name] = new
            return new

    def delete(self, name: str) -> GroupInfo:
        """Remove a group and its committed offsets, durably and in one batch."""
        with self._lock:
            info = self.get(name)
            batch = self._families.batch()
            batch.delete(GROUPS, name.encode())
            batch.delete_range(OFFSETS, U32.pack(info.id), U32.pack(info.id + 1))
            self._families.write(batch, sync=True)
            self._cache.pop(name, None)
            return info

    def all(self) -> list[GroupInfo]:
        """All groups, by name."""
        return [
            _decode(key.decode("utf-8", "replace"), row)
            for key, row in self._families.rows(GROUPS, b"")
        ]


def _check(max_attempts: object, ordered: object) -> None:
    if type(max_attempts) is not int or not 1 <= max_attempts <= ATTEMPTS_MAX:
        raise CallerError(f"max_attempts is {max_attempts!r}; it must be 1 to {ATTEMPTS_MAX}")
    if type(ordered) is not bool:
        raise CallerError(f"ordered is {ordered!r}; it must be True or False")


def _decode(name: str, row: bytes) -> GroupInfo:
    try:
        return msgspec.msgpack.decode(row, type=GroupInfo)
    except msgspec.MsgspecError as e:
        raise IndexDamaged(
            f"the row of group {name!r} can't be read: {e}; import or create it again"
        ) from e
