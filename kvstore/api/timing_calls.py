"""The calls of a store on messages that wait for a time.

The idea: as in `calls`, of which this is a part: a call hands the work to `timing`. Those whose
names end with `_in` are for a namespace: they see the messages of its topics alone.

Invariant: an answer about a message that waits is true, also beside its delivery.
"""

from __future__ import annotations

from kvstore.engine.engine import Engine
from kvstore.meta.namespaces import belongs_to
from kvstore.timing.delayed_message import DelayedMessage, DelayedPage
from kvstore.timing.pending_messages import Owns


class TimingCalls:
    """The calls, see the module. `engine` has the parts of the open store."""

    _engine: Engine

    def cancel(self, message_id: str) -> bool:
        """Cancels a delayed message, by the id that its put returned. True if it will not be
        delivered, also if it was cancelled before or went with its topic; False if it was
        delivered. If several wait with that id, all are cancelled. `MessageNotFound`.

        >>> store.cancel(reminder.message_id)  # doctest: +SKIP
        True
        """
        return self._cancel(message_id, None)

    def cancel_in(self, namespace: str, message_id: str) -> bool:
        """As `cancel`, in the topics of a namespace."""
        return self._cancel(message_id, belongs_to(namespace))

    def _cancel(self, message_id: str, owns: Owns | None) -> bool:
        self._engine.log.check_writable()
        return self._engine.timers.cancel(message_id, owns)

    def change_delay(
        self, message_id: str, *, deliver_at: int | None = None, delay: float | None = None
    ) -> int:
        """Lets a delayed message be delivered at another time: at `deliver_at` (ms since the
        epoch), or in `delay` seconds. Returns that time in ms; one that has passed is now. If
        several messages wait with that id, all are changed. `MessageNotFound`; `DelayEnded` if it
        was delivered, was cancelled or went with its topic; `MessageIllegal` for a time that is
        none.

        >>> store.change_delay(reminder.message_id, delay=3600)  # doctest: +SKIP
        1767326645680
        """
        return self._change(message_id, deliver_at, delay, None)

    def change_delay_in(
        self,
        namespace: str,
        message_id: str,
        *,
        deliver_at: int | None = None,
        delay: float | None = None,
    ) -> int:
        """As `change_delay`, in the topics of a namespace."""
        return self._change(message_id, deliver_at, delay, belongs_to(namespace))

    def _change(
        self, message_id: str, deliver_at: int | None, delay: float | None, owns: Owns | None
    ) -> int:
        self._engine.log.check_writable()
        return self._engine.timers.change(message_id, deliver_at, delay, owns)

    def timer(self, message_id: str) -> DelayedMessage:
        """A delayed message that waits, of several with that id the newest; `MessageNotFound`, and
        `DelayEnded` if it was delivered, was cancelled or went with its topic.
        """
        return self._engine.waiting_list.find(message_id, None)

    def timer_in(self, namespace: str, message_id: str) -> DelayedMessage:
        """As `timer`, in the topics of a namespace."""
        return self._engine.waiting_list.find(message_id, belongs_to(namespace))

    def timers(
        self, topic: str | None = None, *, limit: int = 64, after: tuple[int, int] | None = None
    ) -> DelayedPage:
        """Delayed messages that wait, of a topic or of all, the next due first, and how many there
        are. `after` is the `next` of the page before; without one there are no more. A page may
        have fewer messages than `limit`, see `DelayedPage`. Also of a store that is open read-only.
        `TopicNotFound`, `CallerError`.

        >>> store.timers("orders").count  # doctest: +SKIP
        1
        """
        return self._page(topic, limit, after, None)

    def timers_in(
        self,
        namespace: str,
        topic: str | None = None,
        *,
        limit: int = 64,
        after: tuple[int, int] | None = None,
    ) -> DelayedPage:
        """As `timers`, in the topics of a namespace; `topic` has the name it has in the store."""
        return self._page(topic, limit, after, belongs_to(namespace))

    def _page(
        self, topic: str | None, limit: int, after: tuple[int, int] | None, owns: Owns | None
    ) -> DelayedPage:
        self._engine.reader.check_open()
        return self._engine.waiting_list.page(topic, limit, after, owns)
