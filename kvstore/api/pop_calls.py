"""Calls that pop and ack messages, change locks, and give dead letters back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from kvstore.api.parts import Parts, listed
from kvstore.errors import CallerError, ReceiptExpired
from kvstore.pop.ack import AckResult
from kvstore.pop.group_stats import GroupStats, collect_group
from kvstore.pop.poll import Poll
from kvstore.pop.popped import Popped, check_seconds, check_wait
from kvstore.read.sql import SqlFilter

_NO_WAIT: Final = 0.0


class PopCalls(Parts):
    """Calls about messages under lock."""

    def pop(
        self,
        group: str,
        topic: str,
        limit: int = 1,
        invisible_for: float = 30.0,
        wait: float = _NO_WAIT,
        filter: str | SqlFilter | None = None,
        queue: int | None = None,
        *,
        max_bytes: int | None = None,
        attempt_id: str | None = None,
    ) -> list[Popped]:
        """Take up to `limit` messages (and `max_bytes` of records, but one at least), each under a
        lock of its own that ends `invisible_for` seconds from now, and the group's backoff later.

        What was handed out before and not acked in time comes first, then what is unread, from all
        queues in turn or from one. Waits up to `wait` seconds if there is nothing. `filter` is a
        tag expression or a `kvstore.sql(...)`. A message that it refuses is passed over and done
        for this group; behind thousands of these a pop that doesn't wait comes back with nothing,
        and the next one goes on. A pop whose reply may
        have been lost can be repeated with the same `attempt_id`: it gets the same messages under
        the same locks. `GroupNotFound`, `TopicNotFound`, `QueueNotFound`, `FilterIllegal`,
        `CallerError`; `ArchiveMissing`, `ArchiveUnavailable` if there is nothing but what waits for
        an archive.

        >>> for p in store.pop("billing", "orders", limit=32, wait=5.0):  # doctest: +SKIP
        ...     store.ack(p.receipt)
        """
        self._log.check_writable()
        known, used = self._groups.get(group), self._topics.get(topic)
        seconds = 0.0 if wait is _NO_WAIT else check_wait(wait)
        if filter is None and max_bytes is None and attempt_id is None:
            found = self._popping.quick.pop(known, used, limit, invisible_for, queue)
            if found is not None:
                return found
        return self._popping.pop.pop(
            known, used, seconds, limit, max_bytes, invisible_for, queue, filter, attempt_id
        )

    def _begin_pop(
        self, wake: Callable[[], None], group: str, topic: str, wait: float, *asked: Any
    ) -> tuple[list[Popped], Poll | None]:
        """A pop that doesn't hold its thread, for `kvstore.aio`. If there is nothing and `wait` is
        more than 0 s, the result has a poll, which was just looked at; `wake` is called, from any
        thread, when it is to be looked at again. `asked` is as `Pop.pop` takes it.
        """
        self._log.check_writable()
        known, used = self._groups.get(group), self._topics.get(topic)
        seconds, pop = check_wait(wait), self._popping.pop
        limit, max_bytes, invisible_for, queue, filter, attempt_id = asked
        if filter is None and max_bytes is None and attempt_id is None:
            quick = self._popping.quick.pop(known, used, limit, invisible_for, queue)
            if quick is not None:
                return quick, None
        wanted = pop.wanted(used, asked)
        found = pop.claim(known, used, wanted).popped
        if found or not seconds:
            return found, None
        poll = pop.poll(known, used, wanted, seconds, wake)
        try:
            return poll.look(), poll
        except BaseException:
            poll.end()
            raise

    def _give_back(self, popped: Sequence[Popped]) -> None:
        """Undoes a pop whose messages nobody has seen: they are due at once, and the attempt does
        not count. Messages that another pop has by now stay as they are.
        """
        self._log.check_writable()
        for one in popped:
            with suppress(ReceiptExpired):
                self._popping.settle.give_back(one.receipt)

    def ack(self, receipt: str) -> None:
        """Say that a message is done. `ReceiptExpired` if it was handed out again since,
        `ReceiptIllegal` if this is no receipt of this store. Acking twice is good.
        """
        self._log.check_writable()
        if not self._popping.quick.ack_one(receipt):
            result = self._popping.settle.ack([receipt])[0]
            if result is not True:
                raise result

    def ack_batch(self, receipts: Sequence[str]) -> list[AckResult]:
        """Ack many; for each, in order, True or the error that `ack` would have raised."""
        self._log.check_writable()
        asked = receipts if type(receipts) is list else listed("receipts", receipts)
        if self._popping.quick.ack(asked):
            return [True] * len(asked)
        return self._popping.settle.ack(asked)

    def change_invisible(
        self,
        receipt: str,
        invisible_for: float | None = None,
        *,
        gives_back: bool = False,
    ) -> str:
        """Let a message's lock end `invisible_for` seconds from now, and the group's backoff come
        behind it, as behind the lock that `pop` made. 0 gives the message back at once, None after
        the backoff; with `gives_back` it comes again after `invisible_for` seconds without one.
        Returns the receipt that holds from now on. A message that is given back from its last
        attempt is a dead letter at once.

        `ReceiptExpired` if the message was acked or handed out again, `ReceiptIllegal`."""
        self._log.check_writable()
        wanted = None
        if invisible_for is not None:
            wanted = check_seconds("invisible_for", invisible_for)
        if type(gives_back) is not bool:
            raise CallerError(f"gives_back is {gives_back!r}; it must be True or False")
        return self._popping.settle.change(receipt, wanted, gives_back=gives_back)

    def redrive(self, group: str, limit: int | None = None) -> int:
        """Put dead letters of a group, up to `limit` of those that were not taken yet, back to it;
        returns how many. What it gave up on becomes due at once, with no attempts, and only for
        this group. Where retention took the message meanwhile, its dead letter is put to the topic
        it came from. `GroupNotFound`; `TopicNotFound` if a message's topic was deleted: what came
        before it was put back.

        >>> store.redrive("billing", limit=100)  # doctest: +SKIP
        100
        """
        self._log.check_writable()
        return self._popping.redrive.redrive(self._groups.get(group), limit)

    def group_stats(self, group: str, topic: str | None = None) -> list[GroupStats]:
        """Figures about a group in a topic; without one, in all topics it ever popped or committed
        in. `GroupNotFound`, `TopicNotFound`. Also of a store that is open read-only.

        >>> store.group_stats("billing", "orders")[0].in_flight  # doctest: +SKIP
        32
        """
        self._check_open()
        known = self._groups.get(group)
        if topic is None:
            found = map(self._topics.name_of, self._offsets.topics(known.id))
            names = sorted(name for name in found if name is not None)
        else:
            names = [topic]
        now = self.config.clock.now_ms()
        parts = self._flights(), self._reader, self._topics, self._offsets
        return [collect_group(*parts, known, self._topics.get(name), now) for name in names]
