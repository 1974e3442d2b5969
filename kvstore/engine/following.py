"""Lets a store that is open for reading only find the messages that its writer has moved since.

The idea: such an opening sees the index as it was at one moment. Segments that leave the log after
that are deleted for good, or their messages are in archives. The present index tells which, so it
is opened once more, for the catalog and the locations of archived messages alone. Everything else
stays as it was seen.

Invariants: nothing is opened anew before something is missing; an index that can't be opened just
now changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvstore.errors import StoreError
from kvstore.index.archived import Archived
from kvstore.index.families import Families
from kvstore.index.handover import read_gone
from kvstore.index.index import Index
from kvstore.index.keys import ARCHIVES
from kvstore.log.commitlog import CommitLog
from kvstore.read.reader import Reader


class Follower:
    """Follows the writer of a store that is open for reading only; see the module."""

    def __init__(
        self, log: CommitLog, index: Index, reader: Reader, archives: Callable[[], Archived]
    ) -> None:
        self._log = log
        self._index = index
        self._reader = reader
        self._archives = archives
        self._lock = threading.Lock()
        self._seen = log.segments.removals
        self._rows = dict(index.families.rows(ARCHIVES, b""))
        self._newer: Families | None = None
        self._looked_at: list[tuple[str, int | None]] = []

    def look(self, *, is_missing: bool) -> None:
        """Learns which messages left the log. `is_missing`: a message was not where it should
        be.
        """
        segments = self._log.segments
        segments.rescan()
        if segments.removals == self._seen and not is_missing:
            return
        with self._lock:
            # Damage is met again and again; the index is opened only if it was written to since.
            written = self._written()
            if segments.removals == self._seen and written == self._looked_at:
                return
            self._looked_at = written
            try:
                newer = Families(self._index.families.path, read_only=True, create=False)
                rows = dict(newer.rows(ARCHIVES, b""))
                gone = read_gone(newer)
            except StoreError:
                return
            size = self._log.segment_size
            left = {n for n in segments.numbers if (n + 1) * size <= gone.below}
            left |= gone.segments & set(segments.numbers)
            if not left and rows == self._rows and self._newer is not None:
                self._seen = segments.removals
                newer.close()
                return
            self._follow(newer, rows, left)

    def _written(self) -> list[tuple[str, int | None]]:
        """A mark that changes when the index is written to."""
        files, path = self._log.files, self._index.families.path
        names = [n for n in files.list_dir(path) if n.endswith(".log") or n.startswith("MANIFEST")]
        return [(name, files.size(path / name)) for name in names]

    def _follow(self, newer: Families, rows: dict[bytes, bytes], left: set[int]) -> None:
        if rows or self._rows:
            archived = self._archives()
            # Kept parts of archives whose rows did not change stay valid.
            changed = [(key, row) for key, row in rows.items() if self._rows.get(key) != row]
            removed = [(key, None) for key in self._rows if key not in rows]
            archived.note([*changed, *removed])
            self._reader.read_from(archived)
        # The one before is not closed: others may be reading from it.
        self._newer, self._rows = newer, rows
        self._index.locations.follow(newer)
        self._log.segments.forget(left)
        self._index.locations.forget()
        self._index.moves += 1
        self._seen = self._log.segments.removals

    def close(self) -> None:
        """Closes the index that was opened."""
        if self._newer is not None:
            self._newer.close()
