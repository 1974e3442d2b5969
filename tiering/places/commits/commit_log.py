"""Commit log: reads the commits of a store's jobs in a place, each once, and adds a commit.

The idea: a commit is put under the next number on condition that the number is free, so one job
alone gets it; each commit was therefore compared with all before it. A reader begins with the
checkpoint, takes older commits sixteen at a time from pages, and asks for newer ones by their
numbers until there is none. Nothing is listed.

Invariants: commits are never changed, and none is passed over; checkpoint and pages can be deleted
without loss, and an older checkpoint in place of a newer one only costs reading; a page is put
before the checkpoint that relies on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from msgspec.structs import replace

from kvstore.errors import FormatError
from tiering.errors import CommitUncertain, ObjectExists, ObjectNotFound, ObjectTooShort, PlaceError
from tiering.places.commits.commits import (
    PAGE,
    Commit,
    CommitHead,
    decode_commit,
    decode_head,
    decode_page,
    encode_commit,
    encode_head,
    encode_page,
    head_after,
)
from tiering.places.object_names import checkpoint_key, commit_key, page_key
from tiering.places.place import Place

AT_ONCE: Final = 16
"""Small objects that are read at the same time: a bucket takes its time for each."""
_TRIES: Final = 5
_log = logging.getLogger("kvmq")


class CommitLog:
    """The commits of one store's jobs. One thread at a time may use it; `head` is as of the last
    `look`.
    """

    def __init__(self, place: Place, store_id: str) -> None:
        self.place = place
        self.store_id = store_id
        self.head = CommitHead()
        self._has_looked = False
        self._counting: list[tuple[int, Commit]] = []
        self._counting_to = 0

    # --- reading ---

    def look(self) -> CommitHead:
        """Looks for new commits; returns the head of all commits. Raises FormatError, FormatTooNew,
        PlaceError.
        """
        if not self._has_looked:
            self.head = self._checkpoint()
            self._has_looked = True
        window = 1
        while True:
            first = self.head.number
            found = self._read(range(first, first + window))
            for one in found:
                if one is None:
                    # A later commit may have come while these were read; the next look finds it.
                    return self.head
                self.head = head_after(self.head, one)
            window = AT_ONCE

    def since(self, number: int) -> list[Commit]:
        """The commits from a number on, as of the last look. Raises as `look`."""
        paged = self.head.paged
        pages = range(number // PAGE * PAGE, paged, PAGE)
        found: list[Commit] = []
        if pages:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kvmq-commits") as pool:
                for page in pool.map(self._page, pages):
                    found += page
            found = found[number - pages[0] :]
        return found + self.head.tail[max(number - paged, 0) :]

    def counting(self) -> list[Commit]:
        """The commits that count, as of the last look. Of commits that an earlier call returned,
        none is read again. Raises as `look`.
        """
        first = max(self._counting_to, self.head.counts_from)
        self._counting += enumerate(self.since(first), first)
        self._counting_to = self.head.number
        self._counting = [one for one in self._counting if one[0] >= self.head.counts_from]
        return [commit for _, commit in self._counting]

    def _checkpoint(self) -> CommitHead:
        key = checkpoint_key(self.store_id)
        error: Exception | None = None
        for _ in range(_TRIES):
            try:
                return decode_head(self._bytes(key), f"{self.place.name}/{key}")
            except ObjectNotFound:
                return CommitHead()
            except (FormatError, ObjectTooShort) as e:
                # The object may have been replaced after its size was asked for.
                error = e
        _log.warning("all commits are read instead: %s", str(error))
        return CommitHead()

    def _page(self, number: int) -> list[Commit]:
        key = page_key(self.store_id, number)
        try:
            page = decode_page(self._bytes(key), f"{self.place.name}/{key}")
            if len(page) == PAGE:
                return page
        except ObjectNotFound:
            pass
        except FormatError as e:
            _log.warning("its commits are read one by one instead: %s", str(e))
        return [self._commit(one) for one in range(number, number + PAGE)]

    def _commit(self, number: int) -> Commit:
        """A commit that must exist."""
        key = commit_key(self.store_id, number)
        try:
            return decode_commit(self._bytes(key), f"{self.place.name}/{key}")
        except ObjectNotFound as e:
            raise FormatError(
                f"{self.place.name}/{key} is not there, and {self.head.number} commits were; "
                "copy it from a backup of the place"
            ) from e

    def _read(self, numbers: Iterable[int]) -> list[Commit | None]:
        def read(number: int) -> Commit | None:
            key = commit_key(self.store_id, number)
            try:
                return decode_commit(self._bytes(key), f"{self.place.name}/{key}")
            except ObjectNotFound:
                return None

        wanted = list(numbers)
        if len(wanted) == 1:
            return [read(wanted[0])]
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kvmq-commits") as pool:
            return list(pool.map(read, wanted))

    def _bytes(self, key: str) -> bytes:
        return self.place.read(key, 0, self.place.size(key))

    # --- writing ---

    def append(self, commit: Commit) -> bool:
        """Puts a commit behind those of `head`. Returns False if another job was first; `head` then
        has that job's commit. Raises PlaceError: the commit may then still appear, as long as no
        other commit takes its number. Raises CommitUncertain if the place can't be asked whether
        the commit is there.
        """
        number = self.head.number
        key = commit_key(self.store_id, number)
        try:
            self.place.put(key, encode_commit(commit))
        except PlaceError as e:
            # The put may have succeeded although its answer was lost.
            if not self._is_there(commit, e):
                if not isinstance(e, ObjectExists) and self.head.number == number:
                    raise
                return False
            return True
        self.head = head_after(self.head, commit)
        return True

    def _is_there(self, commit: Commit, error: PlaceError) -> bool:
        """Looks again; returns whether the next commit is this one."""
        number = self.head.number
        try:
            self.look()
        except PlaceError:
            key = commit_key(self.store_id, number)
            raise CommitUncertain(
                f"{error}. It is not known whether job {commit.job} counts: it does if "
                f"{self.place.name}/{key} is there and names it. Look before it is run again: rows "
                "without offsets would be there twice",
                self.place.name,
            ) from error
        return self.head.number > number and self.since(number)[0] == commit

    def note(self, head: CommitHead) -> None:
        """Puts a checkpoint, and before it the pages that are full. Raises PlaceError."""
        while len(head.tail) >= PAGE:
            key = page_key(self.store_id, head.paged)
            # Replaces a damaged page; an intact one is the same.
            self.place.put(key, encode_page(head.tail[:PAGE]), if_absent=False)
            head = replace(head, tail=head.tail[PAGE:])
        self.place.put(checkpoint_key(self.store_id), encode_head(head), if_absent=False)
        self.head = head


class CommitLogs:
    """The commit logs of a place, by store, for callers that ask for them repeatedly."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._logs: dict[str, CommitLog] = {}

    def log(self, store_id: str) -> CommitLog:
        """The log of a store's jobs."""
        if store_id not in self._logs:
            self._logs[store_id] = CommitLog(self._place, store_id)
        return self._logs[store_id]
