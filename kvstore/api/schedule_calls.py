"""The calls of a store on schedules.

The idea: as in `calls`, of which this is a part: a call hands the work to `timing.schedules`, or
reads the rows of schedules, which a store that is open read-only does as well.

Invariant: a call that raised changed no schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvstore.engine.engine import Engine
from kvstore.meta.namespaces import check_namespace, namespace_of
from kvstore.timing.recurrence import UTC_NAME
from kvstore.timing.schedule_rows import Missed, ScheduleFields, ScheduleInfo


class ScheduleCalls:
    """The calls, see the module. `engine` has the parts of the open store."""

    _engine: Engine

    def schedule(
        self,
        name: str,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        cron: str | None = None,
        every: float | None = None,
        zone: str = UTC_NAME,
        missed: Missed = "once",
        queue: int | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        expires_after: float | None = None,
        exist_ok: bool = False,
    ) -> ScheduleInfo:
        """Makes a schedule, which puts a message to a topic at each of its times: those of a cron
        expression (minute, hour, day, month, weekday) in a time zone, or every so many seconds (1
        and more) from now on. The properties `SCHEDULE` and `SCHEDULED_AT` of each message name the
        schedule and the time, ms. A message expires `expires_after` seconds behind its time. The
        other fields are as in `put`.

        `missed` says what happens to times at which the store was closed, or could not put: "once"
        puts one message for all of them; "skip" none, if the last is more than a minute ago; "all"
        one for each, the newest 1,000.

        With `exist_ok` a schedule that is there stays as it is, and is the answer. Raises
        `ScheduleExists`, `ScheduleIllegal` for times that are none, `TopicNotFound`, and the errors
        of `put`.

        >>> store.schedule("nightly", "orders", b"", cron="0 4 * * *")  # doctest: +SKIP
        >>> store.schedule("beat", "orders", b"", every=30, missed="skip")  # doctest: +SKIP
        """
        self._engine.log.check_writable()
        asked = ScheduleFields(
            topic=topic,
            body=body,  # type: ignore[arg-type]  # a copy is made when it is checked; also below
            cron=cron,
            every=every,
            zone=zone,
            missed=missed,
            queue=queue,
            tag=tag,
            keys=keys,  # type: ignore[arg-type]
            properties=properties,  # type: ignore[arg-type]
            message_group=message_group,
            expires_after=expires_after,
        )
        return self._engine.schedules.create(name, asked, exist_ok=exist_ok)

    def schedules(self, topic: str | None = None) -> list[ScheduleInfo]:
        """All schedules, or those of a topic, by name; `TopicNotFound`. One whose row is damaged is
        left out, and logged; `verify` names it.
        """
        self._engine.reader.check_open()
        if topic is not None:
            self._engine.topics.get(topic)
        return self._engine.schedule_rows.infos(topic)

    def schedules_in(self, namespace: str, topic: str | None = None) -> list[ScheduleInfo]:
        """As `schedules`, in a namespace; `topic` has the name it has in the store."""
        check_namespace(namespace)
        return [info for info in self.schedules(topic) if namespace_of(info.name) == namespace]

    def schedule_info(self, name: str) -> ScheduleInfo:
        """One schedule; `ScheduleNotFound`."""
        self._engine.reader.check_open()
        rows = self._engine.schedule_rows
        return rows.info(name, rows.get(name))

    def next_firings(self, name: str, count: int = 5) -> list[int]:
        """The next times of a schedule, ms since the epoch; of one that is paused, those it would
        have. `ScheduleNotFound`.

        >>> store.next_firings("nightly", 2)  # doctest: +SKIP
        [1767326400000, 1767412800000]
        """
        self._engine.reader.check_open()
        now = self._engine.config.clock.now_ms()
        return self._engine.schedule_rows.next_firings(name, count, now)

    def pause_schedule(self, name: str) -> ScheduleInfo:
        """Pauses a schedule: it puts no message until it is resumed; nothing if it is paused.
        `ScheduleNotFound`.
        """
        self._engine.log.check_writable()
        return self._engine.schedules.pause(name)

    def resume_schedule(self, name: str) -> ScheduleInfo:
        """Lets a paused schedule go on with its next time from now on; nothing if it is not paused.
        Times while it was paused are not missed times. `ScheduleNotFound`, `ScheduleIllegal`.
        """
        self._engine.log.check_writable()
        return self._engine.schedules.resume(name)

    def delete_schedule(self, name: str) -> None:
        """Deletes a schedule; messages that it put stay. `ScheduleNotFound`."""
        self._engine.log.check_writable()
        self._engine.schedules.delete(name)
